"""What GPUs, network interfaces and the node are worth, judged by the agent from its own readings.

Any metric that carries the label ``verdict`` is a verdict: the node is as bad as the worst of them.
"""

from lockstep_catalogue.labels import DEVICE, OF_GPU
from lockstep_catalogue.metric import Kind, Label, Metric, Stability, Unit

OK, DEGRADED, FAILED = "ok", "degraded", "failed"
NO_REASON = "none"

VERDICT = Label(
    name="verdict", help="what it is worth now, from good to bad", values=(OK, DEGRADED, FAILED)
)
GPU_REASON = Label(
    name="gpu_reason",
    help="why the GPU is judged so",
    values=(
        NO_REASON,
        "lost",
        "hung",
        "silent",
        "reset_required",
        "recovery_action",
        "remap_failed",
        "remap_pending",
        "retirement_pending",
        "sram_threshold",
        "uncorrected_ecc",
        "pcie_below_max",
        "nvlink_down",
        "nvlink_slow",
        "fabric_failed",
        "fabric_unhealthy",
        "thermal",
        "power_capped",
        "slowdown",
    ),
)
NET_REASON = Label(
    name="net_reason",
    help="why the network interface is judged so",
    values=(NO_REASON, "missing", "down", "rate_below_expected", "flapping"),
)
NODE_REASON = Label(
    name="node_reason",
    help="why the node is judged so",
    values=(
        NO_REASON,
        "gpu_count_short",
        "driver_absent",
        "driver_hung",
        "gpu_failed",
        "gpu_degraded",
        "port_failed",
        "port_degraded",
    ),
)

GPU_HEALTH = Metric(
    name="lockstep_gpu_health_info",
    kind=Kind.GAUGE,
    unit=Unit.NONE,
    labels=(*OF_GPU, VERDICT, GPU_REASON),
    help="What the GPU is worth now, always 1 on each reason that holds.",
    source="readings of the GPU, by the thresholds in docs/agent.md",
    stability=Stability.STABLE,
)
NET_HEALTH = Metric(
    name="lockstep_fabric_net_health_info",
    kind=Kind.GAUGE,
    unit=Unit.NONE,
    labels=(DEVICE, VERDICT, NET_REASON),
    help="What the network interface is worth now, always 1 on each reason that holds.",
    source="state, rate and carrier changes of the interface; what is expected of it",
)
NODE_HEALTH = Metric(
    name="lockstep_host_health_info",
    kind=Kind.GAUGE,
    unit=Unit.NONE,
    labels=(VERDICT, NODE_REASON),
    help="What the node is worth now, always 1 on each reason that holds.",
    source="the verdicts on its parts, the number of its GPUs",
    stability=Stability.STABLE,
)

METRICS = (GPU_HEALTH, NET_HEALTH, NODE_HEALTH)
