"""The catalogue of what Lockstep measures: every metric, label, unit and recorded series, once."""

from lockstep_catalogue import (
    agent,
    fabric,
    feeds,
    gpu,
    host,
    incidents,
    ledger,
    recorded,
    training,
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

METRIC_MODULES = (training, gpu, fabric, host, incidents, agent, ledger, feeds)
METRICS: tuple[Metric, ...] = tuple(
    metric for module in METRIC_MODULES for metric in collect(module, Metric)
)
RECORDED: tuple[Recorded, ...] = collect(recorded, Recorded)
METRICS_NAMED = {metric.name: metric for metric in METRICS}


def metrics_of(endpoint: Endpoint) -> tuple[Metric, ...]:
    """The families that one program serves, in the order of the catalogue."""
    return tuple(metric for metric in METRICS if metric.endpoint is endpoint)


__all__ = [
    "FOREIGN",
    "METRICS",
    "METRICS_NAMED",
    "METRIC_MODULES",
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
    "collect",
    "metrics_of",
]
