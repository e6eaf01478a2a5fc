"""Causes that several jobs share: a rack, the fabric, power and cooling, the storage.

What is hit is always a job and a node on which it has ranks: idle and drained nodes explain
nothing, and a job elsewhere in the cluster keeps its own page.
"""

from lockstep_alerts.conditions.gpu_signs import GPU_JOIN
from lockstep_alerts.conditions.joins import MACHINE_JOIN, NODE_LABELS, held_gpus, ran_on
from lockstep_alerts.conditions.nodes import jobs_on_failed_nodes
from lockstep_alerts.reading.limits import Losses
from lockstep_catalogue import fabric, foreign, gpu, host, incidents, recorded
from lockstep_catalogue.labels import (
    CLUSTER,
    DEVICE,
    FILESYSTEM,
    JOB_ID,
    NODE,
    PORT_REASON,
    SOURCE,
    VERDICT,
    VOLUME,
)
from lockstep_catalogue.metric import Label
from lockstep_catalogue.promql import Matcher, by, eq, has, increase, names, one_of, rate, select
from lockstep_catalogue.windows import ScrapeWindows

_MOMENT_SECONDS = 120
_BROKEN = ("down", "flapping", "retries")
"""Reasons of a port's verdict that break connections; the others make it slower or warn."""
_DEVICE_JOIN = f"on ({names(CLUSTER, NODE, DEVICE)})"
_HELD_BACK = ("power_capped", "thermal", "slowdown")
# Local disks have the same name on every node, and fail one by one.
_SHARED = one_of(FILESYSTEM, "nfs", "nfs4")
_VOLUME_JOIN = f"on ({names(CLUSTER, NODE, VOLUME)})"
_STORAGE_WINDOW = "5m"


_UNWELL = one_of(VERDICT, "failed", "degraded")
_BREAKING = one_of(PORT_REASON, *_BROKEN)


def broken_ports(*matchers: Matcher, which: Matcher = _BREAKING) -> str:
    """Ports that are down, flap or have used up their retries, or others by their verdict."""
    by_agent = select(fabric.PORT_HEALTH, which, *matchers)
    expected = select(incidents.EXPECTED_PORT_HEALTH, eq(VERDICT, "failed"), *matchers)
    return f"({by_agent} or {expected})"


def jobs_at_ports(windows: ScrapeWindows, ports: str) -> str:
    """Jobs and nodes with such a port: next to the job's GPUs, where affinity is known."""
    owners = select(gpu.PORT_OWNER_INFO, has(JOB_ID))
    lately = f"max_over_time({owners}[{windows.cover(_MOMENT_SECONDS)}])"
    near = f"{lately} and {_DEVICE_JOIN} {ports}"
    any_port = (
        f"{ran_on(windows)} unless {MACHINE_JOIN} {select(gpu.PORT_OWNER_INFO)}\n"
        f"and {MACHINE_JOIN} {ports}"
    )
    return by("group", f"{near}\nor\n{any_port}", *NODE_LABELS)


def troubled_sources(windows: ScrapeWindows, window: str, above_seconds: float) -> str:
    """Shared storage by node under a job that times out, gets errors, or waits for too long."""
    of_volume = (CLUSTER, NODE, VOLUME)
    spent = by("sum", rate(host.STORAGE_SECONDS, window), *of_volume)
    requests = by("sum", rate(host.STORAGE_REQUESTS, window), *of_volume)
    slow = f"{spent} / ({requests} > 0) > {above_seconds:g}"
    failing = " or ".join(
        f"{increase(counter, window)} > 0"
        for counter in (host.STORAGE_TIMEOUTS, host.STORAGE_ERRORS)
    )
    troubled = by("group", f"{slow}\nor\n{failing}", *of_volume)
    info = by("group", select(host.VOLUME_INFO, _SHARED), *of_volume, SOURCE)
    sources = by("group", f"{info} and {_VOLUME_JOIN} {troubled}", CLUSTER, NODE, SOURCE)
    return f"({sources} and {MACHINE_JOIN} {ran_on(windows)})"


def explained_jobs(windows: ScrapeWindows, losses: Losses) -> str:
    """Jobs by the cause that they share with others, where it hits enough nodes."""
    held_back = select(incidents.GPU_HEALTH, one_of(incidents.GPU_REASON, *_HELD_BACK))
    evaluations = f"[{2 * windows.evaluation_seconds}s]"
    gone = f"last_over_time({select(recorded.GONE)}{evaluations})"
    hit = {
        "nodes": f"{gone}\nor\n{jobs_on_failed_nodes(windows, losses.failed_window)}",
        "fabric": jobs_at_ports(windows, broken_ports(which=_UNWELL)),
        "power": by("group", f"{held_gpus(windows)} and {GPU_JOIN} {held_back}", *NODE_LABELS),
    }
    found = [_named(_wide(text, losses.nodes), cause) for cause, text in hit.items()]
    sources = troubled_sources(windows, _STORAGE_WINDOW, losses.storage_seconds)
    wide = f"on ({names(CLUSTER, SOURCE)}) ({_count(sources, CLUSTER, SOURCE)} >= {losses.nodes})"
    on_source = f"{ran_on(windows)} and {MACHINE_JOIN} ({sources} and {wide})"
    return "(" + "\nor\n".join((*found, _named(on_source, "storage"))) + ")"


def _count(hit: str, *shared: Label) -> str:
    nodes = by("group", hit, *dict.fromkeys((*shared, NODE)))
    return by("count", nodes, *shared)


def _wide(hit: str, least_nodes: int) -> str:
    return f"({hit}) and on ({CLUSTER.name}) ({_count(hit, CLUSTER)} >= {least_nodes})"


def _named(hit: str, cause: str) -> str:
    jobs = by("group", hit, CLUSTER, JOB_ID)
    return f'label_replace({jobs}, "{foreign.ALERT_CAUSE.name}", "{cause}", "", "")'
