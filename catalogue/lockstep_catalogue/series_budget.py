"""The series budget of a node: rare faults from their first on, and the order of thinning."""

from lockstep_catalogue import agent, fabric, gpu, host, incidents, training
from lockstep_catalogue.metric import Metric

MAX_SERIES = 2000
"""Series of a node with 8 GPUs, 8 adapters and 8 ranks, whatever runs there."""
JOB_SERIES = 1000
"""Of them the jobs may always have so many; more where the node's own leave room."""
DETAIL_JOB_SERIES = 10_000
"""Series that all jobs of a node may have with ``--detail``, where the node's own have no bound."""

# Nearly all of them are 0 for the life of a node: 800 of 2,050 series were.
SPARSE: tuple[Metric, ...] = (
    gpu.GPU_THROTTLE_ACTIVE,
    gpu.GPU_THROTTLE_SECONDS,
    gpu.GPU_ECC_ERRORS,
    gpu.GPU_REMAPPED_ROWS,
    gpu.GPU_REMAP_BANKS,
    gpu.GPU_RETIRED_PAGES,
    gpu.NVLINK_ERRORS,
    gpu.NVLINK_FABRIC_UNHEALTHY,
    fabric.PCIE_AER_ERRORS,
    fabric.PORT_ERRORS,
    fabric.RDMA_RETRIES_EXCEEDED,
    fabric.RDMA_CONGESTION,
    fabric.RDMA_LOSSES,
    fabric.RDMA_QP_ERRORS,
    fabric.NET_ERRORS,
    fabric.NET_DROPPED,
    fabric.NET_DISCARDS,
    fabric.NET_PHY_ERRORS,
    fabric.NET_PAUSES,
    fabric.NET_PAUSE_STORMS,
    incidents.GPU_XID_INCIDENTS,
    incidents.NIC_INCIDENTS,
    incidents.HOST_INCIDENTS,
    agent.COLLECTOR_FAILURES,
    agent.JOBS_SKIPPED,
    agent.JOBS_CUT,
    agent.RAS_QUESTIONS,
)
"""Served from their first value other than 0 on."""

DETAIL: tuple[Metric, ...] = (
    # Other values every tick, and nothing is judged by them.
    agent.COLLECTOR_DURATION,
    # Constants of a model of GPU.
    gpu.GPU_CLOCK_MAX,
    gpu.GPU_TEMPERATURE_LIMIT,
    gpu.GPU_TEMPERATURE_LIMIT_MARGIN,
    gpu.GPU_PCIE_GENERATION_DEVICE_MAX,
)
"""Served with ``--detail`` only."""

THINNING: dict[str, tuple[Metric, ...]] = {
    # Those of jobs go first, for a node's own series tell of everybody's faults.
    "bus": (training.BUS_BYTES, training.BUS_RATE),
    "job_host": (host.JOB_PRESSURE_SECONDS, host.JOB_MEMORY_EVENTS, training.HOST_BOUND_SECONDS),
    "checkpoints": (training.CHECKPOINT_SECONDS,),
    # Seconds stay.
    "collectives": (training.COLLECTIVES, training.COLLECTIVE_BYTES),
    # What does not change while the driver runs.
    "limits": (
        gpu.GPU_POWER_LIMIT,
        gpu.GPU_PCIE_GENERATION_MAX,
        gpu.GPU_PCIE_WIDTH_MAX,
        fabric.NET_SPEED_MAX,
    ),
    "storage": (host.STORAGE_REQUESTS, host.STORAGE_SECONDS, host.STORAGE_BYTES),
    # Bytes stay.
    "packets": (fabric.PORT_PACKETS, fabric.PORT_EXTENDED_PACKETS, fabric.NET_PACKETS),
    "windows": (gpu.GPU_POWER_WINDOW, gpu.GPU_CLOCK_WINDOW),
    "port_errors": (fabric.RDMA_CONGESTION, fabric.RDMA_RETRIES_EXCEEDED, fabric.RDMA_QP_ERRORS),
}
"""Left out in this order where a node has more series than its budget; ranks and verdicts stay."""

assert tuple(THINNING) == agent.LEFT_OUT.values[2:-1], "the label lists the groups in their order"
