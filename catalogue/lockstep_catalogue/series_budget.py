"""What a node spends its series on: rare faults from their first on, and what is thinned first."""

from lockstep_catalogue import (
    events,
    fabric,
    fabric_ports,
    gpu_faults,
    gpu_pcie,
    gpu_power,
    health,
    host,
    nvlink,
    pcie,
)
from lockstep_catalogue.gpu_activity import GPU_SM_ACTIVE_WINDOW
from lockstep_catalogue.job_state import CHECKPOINT_SECONDS
from lockstep_catalogue.job_watch import BUS_BYTES, BUS_RATE, HOST_BOUND_SECONDS
from lockstep_catalogue.metric import Metric
from lockstep_catalogue.training import COLLECTIVE_BYTES, COLLECTIVES

MAX_SERIES = 2000
"""Series of a node with 8 GPUs, 8 adapters and 8 ranks, whatever runs there."""
JOB_SERIES = 1000
"""Of them the jobs may always have so many; more where the node's own leave room."""
DETAIL_JOB_SERIES = 10_000
"""Series that all jobs of a node may have with ``--detail``, where the node's own have no bound."""

# Nearly all of them are 0 for the life of a node: 800 of 2,050 series were.
SPARSE: tuple[Metric, ...] = (
    gpu_power.GPU_THROTTLE_ACTIVE,
    gpu_power.GPU_THROTTLE_SECONDS,
    gpu_faults.GPU_ECC_ERRORS,
    gpu_faults.GPU_SRAM_UNCORRECTED,
    gpu_faults.GPU_REMAPPED_ROWS,
    gpu_faults.GPU_REMAP_BANKS,
    gpu_faults.GPU_RETIRED_PAGES,
    nvlink.NVLINK_ERRORS,
    nvlink.NVLINK_FABRIC_UNHEALTHY,
    pcie.PCIE_AER_ERRORS,
    fabric_ports.PORT_ERRORS,
    fabric_ports.RDMA_RETRIES_EXCEEDED,
    fabric_ports.RDMA_CONGESTION,
    fabric_ports.RDMA_LOSSES,
    fabric_ports.RDMA_QP_ERRORS,
    fabric.NET_ERRORS,
    fabric.NET_DROPPED,
    fabric.NET_DISCARDS,
    fabric.NET_PHY_ERRORS,
    fabric.NET_PAUSES,
    fabric.NET_PAUSE_STORMS,
    events.GPU_XID_INCIDENTS,
    events.NIC_INCIDENTS,
    events.HOST_INCIDENTS,
    health.COLLECTOR_FAILURES,
    health.JOBS_SKIPPED,
    health.JOBS_CUT,
)
"""Served from their first value other than 0 on."""

DETAIL: tuple[Metric, ...] = (
    # Other values every tick, and nothing is judged by them.
    health.COLLECTOR_DURATION,
    health.LANE_AGE,
    # Constants of a model of GPU.
    gpu_power.GPU_CLOCK_MAX,
    gpu_power.GPU_TEMPERATURE_LIMIT,
    gpu_power.GPU_TEMPERATURE_LIMIT_MARGIN,
    gpu_pcie.GPU_PCIE_GENERATION_DEVICE_MAX,
)
"""Served with ``--detail`` only."""

THINNING: dict[str, tuple[Metric, ...]] = {
    # Those of jobs go first, for a node's own series tell of everybody's faults.
    "bus": (BUS_BYTES, BUS_RATE),
    "job_host": (host.JOB_PRESSURE_SECONDS, host.JOB_MEMORY_EVENTS, HOST_BOUND_SECONDS),
    "checkpoints": (CHECKPOINT_SECONDS,),
    # Seconds stay.
    "collectives": (COLLECTIVES, COLLECTIVE_BYTES),
    # What does not change while the driver runs.
    "limits": (
        gpu_power.GPU_POWER_LIMIT,
        gpu_pcie.GPU_PCIE_GENERATION_MAX,
        gpu_pcie.GPU_PCIE_WIDTH_MAX,
        fabric.NET_SPEED_MAX,
        fabric_ports.PORT_LANES,
    ),
    "storage": (host.STORAGE_REQUESTS, host.STORAGE_SECONDS, host.STORAGE_BYTES),
    # Bytes stay.
    "packets": (
        fabric_ports.PORT_PACKETS,
        fabric_ports.PORT_EXTENDED_PACKETS,
        fabric.NET_PACKETS,
    ),
    "windows": (
        gpu_power.GPU_POWER_WINDOW,
        gpu_power.GPU_UTILIZATION_WINDOW,
        gpu_power.GPU_CLOCK_WINDOW,
        GPU_SM_ACTIVE_WINDOW,
    ),
    "port_errors": (
        fabric_ports.RDMA_CONGESTION,
        fabric_ports.RDMA_RETRIES_EXCEEDED,
        fabric_ports.RDMA_QP_ERRORS,
    ),
}
"""Left out in this order where a node has more series than its budget; ranks and verdicts stay."""

assert tuple(THINNING) == health.LEFT_OUT.values[2:-1], "the label lists the groups in their order"
