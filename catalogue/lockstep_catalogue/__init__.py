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

METRICS: tuple[Metric, ...] = tuple(
    metric
    for module in (training, gpu, fabric, host, incidents, agent, ledger, feeds)
    for metric in collect(module, Metric)
)
RECORDED: tuple[Recorded, ...] = collect(recorded, Recorded)
METRIC_BY_NAME = {metric.name: metric for metric in METRICS}
SECTIONS: dict[Metric, str] = {
    training.RANK_INFO: "Training",
    gpu.GPU_INFO: "GPU",
    gpu.GPU_POWER: "GPU power, clocks and temperature",
    gpu.GPU_SM_ACTIVE: "GPU activity",
    gpu.GPU_ECC_ERRORS: "GPU faults",
    gpu.GPU_OWNER_INFO: "GPU owners",
    gpu.NVLINK_LINKS: "NVLink",
    gpu.GPU_PCIE_GENERATION: "GPU PCIe",
    fabric.PCIE_INFO: "PCIe links of GPUs and adapters",
    fabric.PORT_INFO: "RDMA ports",
    fabric.NET_UP: "Fabric",
    host.PRESSURE_SECONDS: "Host",
    incidents.GPU_HEALTH: "Verdicts",
    incidents.GPU_XID_INCIDENTS: "Incidents",
    agent.AGENT_INFO: "Agent",
    ledger.JOBS_FINISHED: "Jobs, on the ledger's endpoint",
    ledger.LEDGER_INFO: "The ledger itself",
    feeds.ASKED: "Feeds of schedulers, on the ledger's endpoint",
}
"""Titles of the sections of docs/metrics.md, by the first metric of each."""


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
