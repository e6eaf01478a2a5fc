"""Causes that several jobs share: a rack, the fabric, power and cooling, the storage.

What is hit is always a job and a node on which it has ranks: idle and drained nodes explain
nothing, and a job elsewhere in the cluster keeps its own page.
"""

from lockstep_alerts.conditions import joins
from lockstep_alerts.conditions.nodes import jobs_on_failed_nodes
from lockstep_alerts.reading.limits import Losses
from lockstep_catalogue import fabric, foreign, gpu, host, incidents, labels, recorded
from lockstep_catalogue.promql import Matcher, by, eq, has, increase, names, one_of, rate, select
from lockstep_catalogue.windows import ScrapeWindows

_MOMENT_SECONDS = 120
_BROKEN = ("down", "flapping", "retries")
"""Reasons of a port's verdict that break connections; the others make it slower or warn."""
_DEVICE_JOIN = f"on ({names(labels.CLUSTER, labels.NODE, labels.DEVICE)})"
_HELD_BACK = ("power_capped", "thermal", "slowdown")
# Local disks have the same name on every node, and fail one by one.
_SHARED = one_of(labels.FILESYSTEM, "nfs", "nfs4")
_VOLUME_JOIN = f"on ({names(labels.CLUSTER, labels.NODE, labels.VOLUME)})"
_STORAGE_WINDOW = "5m"


UNWELL = one_of(labels.VERDICT, "failed", "degraded")
_BREAKING = one_of(labels.PORT_REASON, *_BROKEN)


def broken_ports(*matchers: Matcher, which: Matcher = _BREAKING) -> str:
    """Ports that are down, flap or have used up their retries, or others by their verdict."""
    by_agent = select(fabric.PORT_HEALTH, which, *matchers)
    expected = select(incidents.EXPECTED_PORT_HEALTH, eq(labels.VERDICT, "failed"), *matchers)
    return f"({by_agent} or {expected})"


def jobs_at_ports(windows: ScrapeWindows, ports: str) -> str:
    """Jobs and nodes with such a port: next to the job's GPUs, where affinity is known."""
    owners = select(gpu.PORT_OWNER_INFO, has(labels.JOB_ID))
    lately = f"max_over_time({owners}[{windows.cover(_MOMENT_SECONDS)}])"
    near = f"{lately} and {_DEVICE_JOIN} {ports}"
    any_port = (
        f"{joins.ran_on(windows)} unless {joins.MACHINE_JOIN} {select(gpu.PORT_OWNER_INFO)}\n"
        f"and {joins.MACHINE_JOIN} {ports}"
    )
    return by("group", f"{near}\nor\n{any_port}", *joins.NODE_LABELS)


def troubled_sources(windows: ScrapeWindows, window: str, above_seconds: float) -> str:
    """Shared storage by node under a job that times out, gets errors, or waits for too long."""
    of_volume = (labels.CLUSTER, labels.NODE, labels.VOLUME)
    spent = by("sum", rate(host.STORAGE_SECONDS, window), *of_volume)
    requests = by("sum", rate(host.STORAGE_REQUESTS, window), *of_volume)
    slow = f"{spent} / ({requests} > 0) > {above_seconds:g}"
    failing = " or ".join(
        f"{increase(counter, window)} > 0"
        for counter in (host.STORAGE_TIMEOUTS, host.STORAGE_ERRORS)
    )
    troubled = by("group", f"{slow}\nor\n{failing}", *of_volume)
    info = by("group", select(host.VOLUME_INFO, _SHARED), *of_volume, labels.SOURCE)
    sources = by(
        "group", f"{info} and {_VOLUME_JOIN} {troubled}", labels.CLUSTER, labels.NODE, labels.SOURCE
    )
    return f"({sources} and {joins.MACHINE_JOIN} {joins.ran_on(windows)})"


def hit_nodes(windows: ScrapeWindows, losses: Losses) -> str:
    """Nodes of jobs on which a cause stands that several nodes may share, with the cause."""
    failed = jobs_on_failed_nodes(windows, losses.failed_window)
    held_back = select(incidents.GPU_HEALTH, one_of(incidents.GPU_REASON, *_HELD_BACK))
    sources = troubled_sources(windows, _STORAGE_WINDOW, losses.storage_seconds)
    at_source = by("count", sources, labels.CLUSTER, labels.SOURCE)
    shared = (
        f"{sources} and on ({names(labels.CLUSTER, labels.SOURCE)}) ({at_source} >= {losses.nodes})"
    )
    hit = {
        "nodes": f"{joins.recent(recorded.GONE, windows)}\nor\n{failed}",
        "fabric": jobs_at_ports(windows, broken_ports(which=UNWELL)),
        "power": by(
            "group",
            f"{joins.held_gpus(windows)} and {joins.GPU_JOIN} {held_back}",
            *joins.NODE_LABELS,
        ),
        "storage": f"{joins.ran_on(windows)} and {joins.MACHINE_JOIN} ({shared})",
    }
    return "\nor\n".join(joins.with_cause(cause, nodes) for cause, nodes in hit.items())


def explained_jobs(losses: Losses) -> str:
    """Jobs by the cause that they share with others, where it hits enough nodes."""
    of_cause = (labels.CLUSTER, foreign.ALERT_CAUSE)
    hit = select(recorded.HIT)
    nodes = by("count", by("group", hit, *of_cause, labels.NODE), *of_cause)
    wide = f"{hit} and on ({names(*of_cause)}) ({nodes} >= {losses.nodes})"
    return by("group", wide, *of_cause, labels.JOB_ID)
