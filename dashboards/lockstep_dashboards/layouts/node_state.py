"""Rows about what a node and its GPUs do: use, and what holds them back."""

from lockstep_catalogue import (
    Label,
    Metric,
    Unit,
    gpu,
    gpu_activity,
    gpu_owner,
    gpu_pcie,
    gpu_power,
    host,
    nvlink,
    verdicts,
)
from lockstep_catalogue.fabric_labels import PRESSURE, RESOURCE
from lockstep_catalogue.labels import (
    DIRECTION,
    DOMAIN,
    GPU,
    JOB_ID,
    LIMIT,
    MODEL,
    NODE,
    PIPE,
    RANK,
    SENSOR,
    THROTTLE,
    VERDICT,
)
from lockstep_catalogue.promql import Matcher, eq
from lockstep_dashboards.colors import BAD, GOOD, WARNING
from lockstep_dashboards.panel import Panel, Query, Row, Threshold, ValueText
from lockstep_dashboards.selection import Selection
from lockstep_dashboards.series_panels import column, stat, state_timeline, table, time_series
from lockstep_dashboards.variables import THESE_GPUS, THIS_CLUSTER, THIS_NODE

OF_NODE = Selection((THIS_CLUSTER, THIS_NODE), (NODE,))
OF_GPUS = Selection((THIS_CLUSTER, THIS_NODE, THESE_GPUS), (NODE, GPU))
_ON_THE_NODE = Selection((THIS_CLUSTER, THIS_NODE), ())
ON_REQUEST = "agents serve it with --detail only"
_NO_JOB = "a node without a job has none"
_HOT = (Threshold(color=GOOD), Threshold(color=WARNING, at=80), Threshold(color=BAD, at=88))
_VERDICTS = (
    ValueText(value=0, text="ok", color=GOOD),
    ValueText(value=1, text="degraded", color=WARNING),
    ValueText(value=2, text="failed", color=BAD),
)


def per_gpu(metric: Metric, *labels: Label, where: tuple[Matcher, ...] = ()) -> Query:
    """A gauge of each GPU."""
    legend = " ".join(["GPU {{gpu}}", *(f"{{{{{label.name}}}}}" for label in labels)])
    return Query(expression=OF_GPUS.by("max", OF_GPUS.of(metric, *where), *labels), legend=legend)


def rate_per_gpu(metric: Metric, *labels: Label) -> Query:
    """The rate of a counter of each GPU."""
    legend = " ".join(["GPU {{gpu}}", *(f"{{{{{label.name}}}}}" for label in labels)])
    return OF_GPUS.rates("sum", metric, *labels, legend=legend)


def health_of_gpus() -> Panel:
    """The worst verdict on each GPU over the range."""
    ok, degraded, failed = (
        OF_GPUS.by("max", OF_GPUS.of(verdicts.GPU_HEALTH, eq(VERDICT, verdict)))
        for verdict in VERDICT.values
    )
    expression = f"({failed} * 2) or {degraded} or ({ok} * 0)"
    return state_timeline(
        verdicts.GPU_HEALTH,
        Query(expression=expression, legend="GPU {{gpu}}"),
        title="Verdicts on the GPUs",
        good="one blue band a GPU.",
        otherwise="the table of reasons below says why; failed means: drain the node.",
        texts=_VERDICTS,
        width=12,
    )


def _cell(metric: Metric, heading: str, *where: Matcher) -> Query:
    return column(metric, per_gpu(metric, where=where), heading)


def _owners() -> Query:
    """The job and rank on each GPU."""
    return column(
        gpu_owner.GPU_OWNER_INFO,
        Query(expression=OF_GPUS.by("max", OF_GPUS.of(gpu_owner.GPU_OWNER_INFO), JOB_ID, RANK)),
        "owned",
    )


STATUS = Row(
    title="Now",
    panels=(
        stat(
            gpu.GPU_COUNT,
            OF_NODE.gauge("min", gpu.GPU_COUNT, legend="GPUs"),
            title="GPUs that answer",
            note="The fewest that driver, bus and configuration count.",
            good="as many as the node has.",
            otherwise="a GPU fell off the bus: its Xid is in the row of errors.",
        ),
        stat(
            gpu_power.GPU_POWER,
            Query(expression=f"sum ({_ON_THE_NODE.of(gpu_power.GPU_POWER)})", legend="all GPUs"),
            title="Power of all GPUs",
            good="steady while a job trains.",
            otherwise="far below the other nodes of the job: this node waits, or is capped.",
        ),
        stat(
            gpu_power.GPU_TEMPERATURE,
            Query(
                expression=f"max ({_ON_THE_NODE.of(gpu_power.GPU_TEMPERATURE)})",
                legend="hottest",
            ),
            title="Hottest sensor",
            good="under 80 degrees.",
            otherwise="look at throttling below; then at fans, and the neighbours in the rack.",
            thresholds=_HOT,
        ),
        health_of_gpus(),
        table(
            gpu.GPU_INFO,
            column(gpu.GPU_INFO, OF_GPUS.gauge("max", gpu.GPU_INFO, MODEL), "present"),
            _owners(),
            _cell(gpu.GPU_UTILIZATION, "busy"),
            _cell(gpu_activity.GPU_SM_ACTIVE, "SM active"),
            _cell(gpu.GPU_MEMORY_USED, "memory used"),
            _cell(gpu_power.GPU_POWER, "power"),
            _cell(gpu_power.GPU_TEMPERATURE, "core", eq(SENSOR, "core")),
            title="GPUs of the node",
            good="all alike.",
            otherwise="the one that differs from its neighbours is the one to look at.",
            columns=(GPU, MODEL, JOB_ID, RANK),
            width=24,
            height=9,
        ),
    ),
)
UTILISATION = Row(
    title="Utilisation",
    panels=(
        time_series(
            gpu_activity.GPU_SM_ACTIVE,
            per_gpu(gpu_activity.GPU_SM_ACTIVE),
            good="above 80 %, alike on all GPUs.",
            otherwise="low on all: the job waits for data or the network; low on one: that rank"
            " has less work.",
            minimum=0,
            maximum=1,
            width=8,
        ),
        time_series(
            gpu_activity.GPU_TENSOR_ACTIVE,
            per_gpu(gpu_activity.GPU_TENSOR_ACTIVE, where=(eq(PIPE, "any"),)),
            good="above 40 % for large matrices in half precision.",
            otherwise="small batches, or kernels without tensor cores: a profile says which.",
            minimum=0,
            maximum=1,
            width=8,
        ),
        time_series(
            gpu_activity.GPU_DRAM_ACTIVE,
            per_gpu(gpu_activity.GPU_DRAM_ACTIVE),
            good="below 80 %.",
            otherwise="the kernels are bound by memory: fuse them.",
            minimum=0,
            maximum=1,
            width=8,
        ),
        time_series(
            gpu.GPU_UTILIZATION,
            per_gpu(gpu.GPU_UTILIZATION),
            good="near 100 % while a job trains; it says busy, not efficient.",
            otherwise="idle GPUs of a job that trains wait for the host.",
            minimum=0,
            maximum=1,
            width=8,
        ),
        time_series(
            nvlink.NVLINK_RATE,
            per_gpu(nvlink.NVLINK_RATE, DIRECTION),
            good="alike on all GPUs.",
            otherwise="one that differs has a slow or inactive link: row of NVLink and PCIe.",
            width=8,
        ),
        time_series(
            gpu_pcie.GPU_PCIE_RATE,
            per_gpu(gpu_pcie.GPU_PCIE_RATE, DIRECTION),
            good="alike on all GPUs.",
            otherwise="compare generation and width of the link: row of NVLink and PCIe.",
            width=8,
        ),
    ),
)
SATURATION = Row(
    title="Saturation",
    panels=(
        time_series(
            gpu_power.GPU_THROTTLE_SECONDS,
            rate_per_gpu(gpu_power.GPU_THROTTLE_SECONDS, THROTTLE),
            title="Throttled share of the time, by reason",
            good="only idle and app_clocks.",
            otherwise="thermal: cooling; power: the limit or the supply. A page follows at 60 s.",
            unit=Unit.RATIO,
            width=8,
            may_be_empty="a GPU that was never held back has no such series",
        ),
        time_series(
            gpu_power.GPU_CLOCK,
            per_gpu(gpu_power.GPU_CLOCK, where=(eq(DOMAIN, "sm"),)),
            title="SM clock",
            good="at its maximum under load, alike on all GPUs.",
            otherwise="throttling beside it says why it is held back.",
            width=8,
        ),
        time_series(
            gpu_power.GPU_POWER,
            per_gpu(gpu_power.GPU_POWER),
            per_gpu(gpu_power.GPU_POWER_LIMIT, where=(eq(LIMIT, "enforced"),)),
            title="Power and its limit",
            good="below the limit.",
            otherwise="at the limit the clocks fall: `nvidia-smi -q -d POWER` says who set it.",
            width=8,
        ),
        time_series(
            gpu_power.GPU_TEMPERATURE,
            per_gpu(gpu_power.GPU_TEMPERATURE, SENSOR),
            good="under 80 degrees.",
            otherwise="clean, or move the job.",
            thresholds=_HOT,
            width=8,
        ),
        time_series(
            gpu.GPU_MEMORY_USED,
            per_gpu(gpu.GPU_MEMORY_USED),
            good="alike on the GPUs of a job, below the total.",
            otherwise="growth without end is a leak; the job board has the allocator's view.",
            width=8,
        ),
        time_series(
            host.PRESSURE_SECONDS,
            OF_NODE.rates("sum", host.PRESSURE_SECONDS, RESOURCE, PRESSURE),
            title="Pressure of the host",
            note="Share of the time in which tasks waited.",
            good="below 10 %.",
            otherwise="cpu: loaders or neighbours; io: storage; memory: the limit is near.",
            unit=Unit.RATIO,
            width=8,
        ),
    ),
)
