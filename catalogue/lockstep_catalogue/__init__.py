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

METRICS: tuple[Metric, ...] = (
    *training.METRICS,
    *parts.METRICS,
    *gpu.METRICS,
    *gpu_power.METRICS,
    *gpu_activity.METRICS,
    *gpu_faults.METRICS,
    *gpu_owner.METRICS,
    *nvlink.METRICS,
    *gpu_pcie.METRICS,
    *pcie.METRICS,
    *fabric_ports.METRICS,
    *fabric.METRICS,
    *host.METRICS,
    *verdicts.METRICS,
    *events.METRICS,
    *health.METRICS,
    *ledger.METRICS,
    *ledger_service.METRICS,
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
    "Endpoint",
    "Foreign",
    "Kind",
    "Label",
    "Metric",
    "Recorded",
    "Series",
    "Stability",
    "Unit",
    "metrics_of",
]
