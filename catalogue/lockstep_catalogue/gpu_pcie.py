"""Metrics of a GPU's PCIe link; by the driver (NVML)."""

from lockstep_catalogue.labels import DIRECTION, OF_GPU, PCIE_ERROR
from lockstep_catalogue.metric import Metric

# A consumer GPU idles at generation 1; H100, H200 and L40S stay at their highest.
GPU_PCIE_GENERATION = Metric(
    name="lockstep_gpu_pcie_link_generation",
    labels=OF_GPU,
    help="Present PCIe generation of the GPU's link; an idle link may use a lower one.",
    source="nvmlDeviceGetCurrPcieLinkGeneration",
)
GPU_PCIE_WIDTH = Metric(
    name="lockstep_gpu_pcie_link_width_lanes",
    labels=OF_GPU,
    help="Present lanes of the GPU's link.",
    source="nvmlDeviceGetCurrPcieLinkWidth",
)
# A GPU of generation 5 in a slot of generation 4 has no fault: compare with what both support.
GPU_PCIE_GENERATION_MAX = Metric(
    name="lockstep_gpu_pcie_link_generation_max",
    labels=OF_GPU,
    help="Highest PCIe generation that both GPU and slot support.",
    source="nvmlDeviceGetMaxPcieLinkGeneration",
)
GPU_PCIE_GENERATION_DEVICE_MAX = Metric(
    name="lockstep_gpu_pcie_link_generation_device_max",
    labels=OF_GPU,
    help="Highest PCIe generation that the GPU itself supports.",
    source="nvmlDeviceGetGpuMaxPcieLinkGeneration",
)
GPU_PCIE_WIDTH_MAX = Metric(
    name="lockstep_gpu_pcie_link_width_max_lanes",
    labels=OF_GPU,
    help="Most lanes that both GPU and slot support.",
    source="nvmlDeviceGetMaxPcieLinkWidth",
)
# A healthy H100 shows 9 since boot: alert on the rate alone.
GPU_PCIE_REPLAYS = Metric(
    name="lockstep_gpu_pcie_replays_total",
    labels=OF_GPU,
    help="Packets resent on the GPU's link; a few since boot are normal, a steady rate is not.",
    source="nvmlDeviceGetPcieReplayCounter",
)
GPU_PCIE_ERRORS = Metric(
    name="lockstep_gpu_pcie_errors_total",
    labels=(*OF_GPU, PCIE_ERROR),
    help="Errors on the GPU's link.",
    source="fields 173 to 182",
)
# Not nvmlDeviceGetPcieThroughput: it blocks for 20 ms in each direction.
GPU_PCIE_BYTES = Metric(
    name="lockstep_gpu_pcie_bytes_total",
    labels=(*OF_GPU, DIRECTION),
    help="Traffic on the GPU's link; the driver's counter wraps and restarts.",
    source="fields 197 and 198",
)
GPU_PCIE_RATE = Metric(
    name="lockstep_gpu_pcie_activity_bytes_per_second",
    labels=(*OF_GPU, DIRECTION),
    help="Traffic on the GPU's link since the last tick.",
    source="GPM 20 and 21, DCGM 1009 and 1010",
)
