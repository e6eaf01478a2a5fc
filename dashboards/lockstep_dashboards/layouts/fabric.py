"""The board of the fabric and of storage: links, traffic, loss, and what jobs get of it."""

from lockstep_catalogue import Unit, health, host, job_watch, training
from lockstep_catalogue.fabric_labels import (
    FILESYSTEM,
    MOUNT_POINT,
    OPERATION,
    SOURCE,
    VOLUME,
)
from lockstep_catalogue.job_state import CHECKPOINT_SECONDS
from lockstep_catalogue.labels import CLUSTER, JOB_ID, KIND, NODE, WRITING
from lockstep_catalogue.promql import LE, by
from lockstep_dashboards.annotations import annotations
from lockstep_dashboards.layouts.fabric_detail import INVENTORY, PORT_DETAIL
from lockstep_dashboards.layouts.fabric_net import ETHERNET, ETHERNET_DETAIL
from lockstep_dashboards.layouts.fabric_ports import POINTS, PORTS, TRAFFIC
from lockstep_dashboards.links import FABRIC_BOARD
from lockstep_dashboards.panel import Board, Query, Row
from lockstep_dashboards.selection import (
    MOST_ROWS,
    NUM_WORST,
    Selection,
    above_zero,
    of_largest,
)
from lockstep_dashboards.series_panels import column, table, time_series
from lockstep_dashboards.variables import (
    DEVICES,
    NODES,
    THESE_NODES,
    THIS_CLUSTER,
    cluster_variable,
)

_VOLUMES = Selection((THIS_CLUSTER, THESE_NODES), (CLUSTER, NODE, VOLUME))
_JOBS = Selection((THIS_CLUSTER, THESE_NODES), (CLUSTER, JOB_ID))
_NO_TROUBLE = "storage without trouble has none"
_NO_COLLECTIVE = "jobs of one rank, or whose collectives no hook sees, have none"


def _bus_bandwidth() -> Query:
    """Of the jobs with most of it, the node that has least."""
    rate = _JOBS.by("min", _JOBS.of(job_watch.BUS_RATE), KIND)
    last = _JOBS.by("max", f"{_JOBS.of(job_watch.BUS_RATE)} @ end()")
    return of_largest(rate, last, CLUSTER, JOB_ID, count=8, legend="{{job_id}} {{kind}}")


def _mean_latency() -> Query:
    """Seconds a request, of the volumes that spent most time on requests."""
    seconds = _VOLUMES.by("sum", _VOLUMES.rate(host.STORAGE_SECONDS), OPERATION)
    requests = _VOLUMES.by("sum", _VOLUMES.rate(host.STORAGE_REQUESTS), OPERATION)
    grown = f"increase({_VOLUMES.of(host.STORAGE_SECONDS)}[$__range] @ end())"
    return of_largest(
        f"{seconds} / ({requests} > 0)",
        _VOLUMES.by("sum", grown),
        *_VOLUMES.labels,
        legend="{{node}} {{volume}} {{operation}}",
    )


def _throughput() -> Query:
    """Bytes a second of the volumes that moved most."""
    grown = f"increase({_VOLUMES.of(host.STORAGE_BYTES)}[$__range] @ end())"
    return of_largest(
        _VOLUMES.by("sum", _VOLUMES.rate(host.STORAGE_BYTES), OPERATION),
        _VOLUMES.by("sum", grown),
        *_VOLUMES.labels,
        legend="{{node}} {{volume}} {{operation}}",
    )


def _checkpoint_latency() -> Query:
    """The 95th percentile of each job, by what of the write it is."""
    buckets = by("sum", _JOBS.rate(CHECKPOINT_SECONDS), CLUSTER, JOB_ID, WRITING, LE)
    last = _JOBS.by("max", f"{_JOBS.of(training.STEP)} @ end()")
    return of_largest(
        f"histogram_quantile(0.95, {buckets})",
        last,
        CLUSTER,
        JOB_ID,
        count=MOST_ROWS // 2,
        legend="{{job_id}} {{writing}}",
    )


JOBS = Row(
    title="What jobs get",
    panels=(
        time_series(
            job_watch.BUS_RATE,
            _bus_bandwidth(),
            title="Bus bandwidth of jobs by kind of collective",
            note="Of the node of the job that has least.",
            good="steady for a job; near what nccl-tests reaches for large messages.",
            otherwise="a fall on one job is a port under it, on all jobs the fabric.",
            may_be_empty=_NO_COLLECTIVE,
        ),
        time_series(
            CHECKPOINT_SECONDS,
            _checkpoint_latency(),
            title="Checkpoint latency, p95",
            good="blocking under 60 s, persisting under the interval of checkpoints.",
            otherwise="look at the latency and errors of the volumes below.",
            may_be_empty="a range without a checkpoint has none",
        ),
    ),
)
STORAGE = Row(
    title="Storage",
    panels=(
        time_series(
            host.STORAGE_BYTES,
            _throughput(),
            title="Throughput of volumes",
            note="Those that moved most.",
            max_points=POINTS,
            unit=Unit.BYTES_PER_SECOND,
            good="steady reads, writes in bursts at checkpoints.",
            otherwise="flat at a ceiling: the volume is the bottleneck.",
        ),
        time_series(
            host.STORAGE_SECONDS,
            _mean_latency(),
            title="Mean latency of requests",
            note="Of the volumes that spent most time on requests.",
            max_points=POINTS,
            good="below 20 ms for network file systems, 1 ms for NVMe.",
            otherwise="all nodes: the file server; one node: its mount or its disk.",
        ),
        table(
            host.STORAGE_ERRORS,
            column(
                host.STORAGE_ERRORS,
                above_zero(_VOLUMES.by("sum", _VOLUMES.increase(host.STORAGE_ERRORS))),
                "errors",
            ),
            column(
                host.STORAGE_TIMEOUTS,
                above_zero(_VOLUMES.by("sum", _VOLUMES.increase(host.STORAGE_TIMEOUTS))),
                "time-outs",
            ),
            column(
                host.STORAGE_RETRANSMISSIONS,
                above_zero(_VOLUMES.by("sum", _VOLUMES.increase(host.STORAGE_RETRANSMISSIONS))),
                "resent",
            ),
            title="Trouble of volumes",
            note="Within the range.",
            good="empty.",
            otherwise="errors on one node: its disk; on all: the file server.",
            columns=(NODE, VOLUME),
            may_be_empty=_NO_TROUBLE,
        ),
        time_series(
            host.STORAGE_BUSY_SECONDS,
            of_largest(
                _VOLUMES.by("sum", _VOLUMES.rate(host.STORAGE_BUSY_SECONDS)),
                _VOLUMES.by(
                    "sum",
                    f"increase({_VOLUMES.of(host.STORAGE_BUSY_SECONDS)}[$__range] @ end())",
                ),
                *_VOLUMES.labels,
                count=NUM_WORST,
                legend="{{node}} {{volume}}",
            ),
            title="Busy block devices",
            max_points=POINTS,
            unit=Unit.RATIO,
            good="below 80 %.",
            otherwise="page cache is too small for the data set, or logs fill the disk.",
        ),
        table(
            host.VOLUME_INFO,
            Query(
                expression=f"topk({MOST_ROWS}, "
                + _VOLUMES.by("max", _VOLUMES.of(host.VOLUME_INFO), FILESYSTEM, SOURCE, MOUNT_POINT)
                + ")"
            ),
            title="Volumes",
            good="the same mounts on all nodes of a job.",
            otherwise="a missing mount makes a rank read from elsewhere.",
            columns=(NODE, VOLUME, FILESYSTEM, SOURCE, MOUNT_POINT),
            width=24,
        ),
    ),
)

FABRIC = Board(
    uid=FABRIC_BOARD,
    title="Lockstep: fabric and storage",
    description="Links, traffic and loss, storage, and what jobs get of them.",
    variables=(cluster_variable(health.AGENT_INFO), NODES, DEVICES),
    rows=(PORTS, TRAFFIC, ETHERNET, JOBS, STORAGE, PORT_DETAIL, ETHERNET_DETAIL, INVENTORY),
    annotations=annotations(Selection((THIS_CLUSTER,), ())),
)
