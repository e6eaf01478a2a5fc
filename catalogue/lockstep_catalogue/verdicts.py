"""Verdicts of the agent on GPUs, expected ports and the node, from its own readings.

Every metric with the label ``verdict`` is a verdict: the node is as bad as the worst of them.
"""

from lockstep_catalogue.labels import DEVICE, OF_GPU, VERDICT
from lockstep_catalogue.metric import Label, Metric, Stability

OK, DEGRADED, FAILED = VERDICT.values
NO_REASON = "none"

GPU_REASON = Label(
    name="gpu_reason",
    help="reason for the verdict on the GPU",
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
EXPECTED_REASON = Label(
    name="expected_reason",
    help="how the port differs from what is expected",
    values=(NO_REASON, "missing", "not_up", "rate_below_expected"),
)
NODE_REASON = Label(
    name="node_reason",
    help="reason for the verdict on the node",
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
    labels=(*OF_GPU, VERDICT, GPU_REASON),
    help="Verdict on the GPU, always 1 on each reason that holds.",
    source="readings of the GPU, by the thresholds in docs/agent.md",
    stability=Stability.STABLE,
)
EXPECTED_PORT_HEALTH = Metric(
    name="lockstep_fabric_expected_port_health_info",
    labels=(DEVICE, VERDICT, EXPECTED_REASON),
    help="Verdict on a port that the agent is configured to expect, always 1.",
    source="--expect-port against state and rate of the device's ports",
)
NODE_HEALTH = Metric(
    name="lockstep_host_health_info",
    labels=(VERDICT, NODE_REASON),
    help="Verdict on the node, always 1 on each reason that holds.",
    source="the verdicts on its parts, the number of its GPUs",
    stability=Stability.STABLE,
)
