"""The catalogue of what Lockstep measures: every metric, label, unit and recorded series, once."""

from lockstep_catalogue import (
    events,
    fabric,
    fabric_ports,
    gpu,
    gpu_activity,
    gpu_faults,
    gpu_owner,
    gpu_pcie,
    gpu_power,
    health,
    host,
    job_ranks,
    job_state,
    job_watch,
    ledger,
    ledger_service,
    nvlink,
    parts,
    pcie,
    recorded,
    recorded_objectives,
    recorded_slices,
    training,
    verdicts,
)
from lockstep_catalogue.foreign import FOREIGN
from lockstep_catalogue.metric import (
    Endpoint,
    Foreign,
    Kind,
    Label,
    Metric,
    Recorded,
    Series,
    Stability,
    Unit,
    collect,
)

SECTIONS = (
    ("Training", (training, job_state, job_watch, job_ranks, parts)),
    ("GPU", (gpu,)),
    ("GPU power, clocks and temperature", (gpu_power,)),
    ("GPU activity", (gpu_activity,)),
    ("GPU faults", (gpu_faults,)),
    ("GPU owners", (gpu_owner,)),
    ("NVLink", (nvlink,)),
    ("GPU PCIe", (gpu_pcie,)),
    ("PCIe links of GPUs and adapters", (pcie,)),
    ("RDMA ports", (fabric_ports,)),
    ("Fabric", (fabric,)),
    ("Host", (host,)),
    ("Verdicts", (verdicts,)),
    ("Incidents", (events,)),
    ("Agent", (health,)),
    ("Jobs, on the ledger's endpoint", (ledger,)),
    ("The ledger itself", (ledger_service,)),
)
"""The modules that declare metrics, in the order of docs/metrics.md."""
METRICS: tuple[Metric, ...] = tuple(
    metric for _, modules in SECTIONS for each in modules for metric in collect(each, Metric)
)
RECORDED: tuple[Recorded, ...] = tuple(
    series
    for module in (recorded, recorded_slices, recorded_objectives)
    for series in collect(module, Recorded)
)
METRIC_BY_NAME = {metric.name: metric for metric in METRICS}


def metrics_of(endpoint: Endpoint) -> tuple[Metric, ...]:
    """The families that one program serves, in the order of the catalogue."""
    return tuple(metric for metric in METRICS if metric.endpoint is endpoint)


__all__ = [
    "FOREIGN",
    "METRICS",
    "METRIC_BY_NAME",
    "RECORDED",
    "SECTIONS",
    "Endpoint",
    "Foreign",
    "Kind",
    "Label",
    "Metric",
    "Recorded",
    "Series",
    "Stability",
    "Unit",
    "collect",
    "metrics_of",
]
