"""Metrics of GPUs: identity, load, power, activity, faults, owners, NVLink and PCIe traffic."""

from typing import Any

from lockstep_catalogue import labels
from lockstep_catalogue.metric import Label, Metric, Stability


def _declare_gpu(
    name: str, help_text: str, source: str, by: tuple[Label, ...] = (), **settings: Any
) -> Metric:
    return Metric(
        name=name, labels=(*labels.GPU_LABELS, *by), help=help_text, source=source, **settings
    )


# Metrics of a GPU's identity, state, load and memory; by the driver (NVML).

GPU_INFO = _declare_gpu(
    "lockstep_gpu_info",
    "Identity of a GPU, always 1; join on gpu and uuid; unknown is empty.",
    "nvmlDeviceGetName, Architecture, PciInfo, MinorNumber, Serial, VbiosVersion",
    (
        labels.MODEL,
        labels.ARCHITECTURE,
        labels.PCI_BUS_ID,
        labels.MINOR,
        labels.SERIAL,
        labels.VBIOS,
    ),
    stability=Stability.STABLE,
)
GPU_DRIVER_INFO = Metric(
    name="lockstep_gpu_driver_info",
    labels=(labels.VERSION, labels.CUDA),
    help="Version of the GPU driver, always 1; absent without a driver.",
    source="nvmlSystemGetDriverVersion, nvmlSystemGetCudaDriverVersion_v2",
    for_users="dcgm-exporter: label DCGM_FI_DRIVER_VERSION",
)
# A GPU that fell off the bus is in one count and missing in the other.
GPU_COUNT = Metric(
    name="lockstep_gpu_devices",
    labels=(labels.COUNTED_BY,),
    help="GPUs of the node that driver or bus count; one is lost where the driver counts fewer.",
    source="nvmlDeviceGetCount_v2, /sys/bus/pci/devices",
)
GPU_UP = _declare_gpu(
    "lockstep_gpu_up",
    "1 while the driver answers for the GPU, 0 when it is lost or a call hangs.",
    "result of the calls of one sampling",
    stability=Stability.STABLE,
)
GPU_STATE_INFO = _declare_gpu(
    "lockstep_gpu_state_info",
    "State of the driver's answers for the GPU, always 1 on the present state.",
    "return codes of the driver, the watchdog",
    (labels.GPU_STATE,),
    stability=Stability.STABLE,
)
# A single resident thread counts as full use; gpu_sm_active_ratio says how much works.
GPU_UTILIZATION = _declare_gpu(
    "lockstep_gpu_utilization_ratio",
    "Share of the driver's last window in which some kernel was resident.",
    "nvmlDeviceGetUtilizationRates gpu",
)
GPU_MEMORY_COPY = _declare_gpu(
    "lockstep_gpu_memory_copy_utilization_ratio",
    "Share of the driver's last window in which memory was read or written.",
    "nvmlDeviceGetUtilizationRates memory",
    for_users="dcgm-exporter: DCGM_FI_DEV_MEM_COPY_UTIL",
)
GPU_MEMORY_TOTAL = _declare_gpu(
    "lockstep_gpu_memory_total_bytes", "Memory of the GPU.", "nvmlDeviceGetMemoryInfo total"
)
GPU_MEMORY_USED = _declare_gpu(
    "lockstep_gpu_memory_used_bytes", "Memory of the GPU in use.", "nvmlDeviceGetMemoryInfo used"
)
GPU_MEMORY_FREE = _declare_gpu(
    "lockstep_gpu_memory_free_bytes",
    "Memory of the GPU that is free.",
    "nvmlDeviceGetMemoryInfo free",
)
# Version 1 of the call counts the reserved part as used.
GPU_MEMORY_RESERVED = _declare_gpu(
    "lockstep_gpu_memory_reserved_bytes",
    "Memory of the GPU that driver and firmware reserve.",
    "nvmlDeviceGetMemoryInfo_v2 reserved",
)
GPU_BAR1_USED = _declare_gpu(
    "lockstep_gpu_bar1_used_bytes",
    "Used part of the BAR1 window, through which bus and network cards access the memory.",
    "nvmlDeviceGetBAR1MemoryInfo bar1Used",
)
# In another pid namespace the driver's process ids mean nothing.
GPU_PROCESSES = _declare_gpu(
    "lockstep_gpu_processes",
    "Number of compute processes on the GPU; needs the pid namespace of the host.",
    "nvmlDeviceGetComputeRunningProcesses_v3",
)
GPU_MIG_ENABLED = _declare_gpu(
    "lockstep_gpu_mig_enabled",
    "1 when the GPU is split into instances, else 0.",
    "nvmlDeviceGetMigMode",
    for_users="nvidia_gpu_exporter: mig_mode_current",
)
GPU_MIG_INFO = _declare_gpu(
    "lockstep_gpu_mig_info",
    "An instance of a split GPU, always 1.",
    "nvmlDeviceGetMigDeviceHandleByIndex, nvmlDeviceGetUUID",
    (labels.MIG, labels.MIG_UUID),
)
GPU_MIG_MEMORY_TOTAL = _declare_gpu(
    "lockstep_gpu_mig_memory_total_bytes",
    "Memory of an instance of a split GPU.",
    "nvmlDeviceGetMemoryInfo of the instance",
    (labels.MIG,),
)
GPU_MIG_MEMORY_USED = _declare_gpu(
    "lockstep_gpu_mig_memory_used_bytes",
    "Memory of an instance of a split GPU in use.",
    "nvmlDeviceGetMemoryInfo of the instance",
    (labels.MIG,),
)

# Metrics of a GPU's power, energy, clocks, throttling and temperature; by the driver (NVML).

# nvmlDeviceGetPowerUsage is a mean over a second on most GPUs from Ampere on; field 186 is
# instantaneous.
GPU_POWER = _declare_gpu(
    "lockstep_gpu_power_watts",
    "Power drawn by the GPU when it was sampled.",
    "field 186, else nvmlDeviceGetPowerUsage / 1000",
)
GPU_POWER_AVERAGE = _declare_gpu(
    "lockstep_gpu_power_average_watts",
    "Power drawn by the GPU, averaged by the driver over about a second.",
    "field 185 / 1000",
    for_users="dcgm-exporter: DCGM_FI_DEV_POWER_USAGE",
)
# Its rate is the true mean power, which no sampling can miss.
GPU_ENERGY = _declare_gpu(
    "lockstep_gpu_energy_joules_total",
    "Energy used by the GPU since the driver was loaded.",
    "field 83, else nvmlDeviceGetTotalEnergyConsumption / 1000",
    for_users="dcgm-exporter: DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
)
GPU_POWER_LIMIT = _declare_gpu(
    "lockstep_gpu_power_limit_watts",
    "Limits on the power of the GPU.",
    "fields 187 to 190, 192 / 1000, nvmlDeviceGetEnforcedPowerLimit",
    (labels.LIMIT,),
)
# The driver keeps a ring of its own samples with times: extremes below a second need no fast loop.
GPU_POWER_WINDOW = _declare_gpu(
    "lockstep_gpu_power_window_watts",
    "Power of the GPU over the agent's window, from the driver's own samples.",
    "nvmlDeviceGetSamples of total power",
    (labels.STATISTIC,),
)
GPU_CLOCK_WINDOW = _declare_gpu(
    "lockstep_gpu_clock_window_hertz",
    "Processor clock of the GPU over the agent's window, from the driver's own samples.",
    "nvmlDeviceGetSamples of the processor clock",
    (labels.STATISTIC,),
)
GPU_CLOCK = _declare_gpu(
    "lockstep_gpu_clock_hertz",
    "Clock of the GPU by domain.",
    "nvmlDeviceGetClockInfo x 1e6",
    (labels.DOMAIN,),
)
GPU_CLOCK_MAX = _declare_gpu(
    "lockstep_gpu_clock_max_hertz",
    "Highest clock of the GPU by domain.",
    "nvmlDeviceGetMaxClockInfo x 1e6",
    (labels.DOMAIN,),
    for_users="nvidia_gpu_exporter: clocks_max_sm_clock_hz",
)
GPU_PSTATE = _declare_gpu(
    "lockstep_gpu_performance_state",
    "Performance state, from 0, the fastest, to 15.",
    "nvmlDeviceGetPerformanceState",
    for_users="nvidia_gpu_exporter: pstate",
)
# An H100 and an H200 report the nine bits 0x1ff as supported.
GPU_THROTTLE_ACTIVE = _declare_gpu(
    "lockstep_gpu_throttle_active",
    "1 while the driver holds the clocks back for this reason, else 0.",
    "nvmlDeviceGetCurrentClocksEventReasons",
    (labels.THROTTLE,),
)
# A counter in nanoseconds: it misses nothing between two polls, as the bits of the moment do.
GPU_THROTTLE_SECONDS = _declare_gpu(
    "lockstep_gpu_throttle_seconds_total",
    "Time for which the clocks were held back for this reason.",
    "fields 74, 76, 269, 270, 271 / 1e9, before them 75",
    (labels.THROTTLE,),
)
# nvmlDeviceGetTemperature goes away with CUDA 14; an L40S has no memory sensor.
GPU_TEMPERATURE = _declare_gpu(
    "lockstep_gpu_temperature_celsius",
    "Temperature of the GPU by sensor.",
    "nvmlDeviceGetTemperatureV, field 82",
    (labels.SENSOR,),
)
GPU_TEMPERATURE_MARGIN = _declare_gpu(
    "lockstep_gpu_temperature_margin_celsius",
    "Margin of the GPU below its highest temperature of normal operation.",
    "nvmlDeviceGetMarginTemperature",
)
GPU_TEMPERATURE_LIMIT = _declare_gpu(
    "lockstep_gpu_temperature_limit_celsius",
    "Temperature from which the driver acts, where it reports one.",
    "nvmlDeviceGetTemperatureThreshold",
    (labels.THRESHOLD,),
    for_users="dcgm-exporter: DCGM_FI_DEV_SLOWDOWN_TEMP, _SHUTDOWN_TEMP",
)
# From Ada and Hopper on thresholds are offsets from T.Limit. Fixed limits of 85 or 90 C would be
# wrong: an H100 slows down at 89 C.
GPU_TEMPERATURE_LIMIT_MARGIN = _declare_gpu(
    "lockstep_gpu_temperature_limit_margin_celsius",
    "Margin at which the driver acts, where it reports thresholds as margins.",
    "fields 193 to 196",
    (labels.THRESHOLD,),
    for_users="dcgm-exporter: DCGM_FI_DEV_GPU_TEMP_LIMIT",
)

# Metrics of the activity of a GPU's units: by GPM from Hopper on, by DCGM before.

# GPM takes two samples at least 100 ms apart, and no lock on the profiler, so Nsight can run beside
# it.
GPU_SM_ACTIVE = _declare_gpu(
    "lockstep_gpu_sm_active_ratio",
    "Share of time, over all multiprocessors, in which one had work.",
    "GPM 2, DCGM 1002",
)
GPU_SM_OCCUPANCY = _declare_gpu(
    "lockstep_gpu_sm_occupancy_ratio",
    "Warps resident on the multiprocessors as a share of the most that fit.",
    "GPM 3, DCGM 1003",
    for_users="dcgm-exporter: DCGM_FI_PROF_SM_OCCUPANCY",
)
GPU_TENSOR_ACTIVE = _declare_gpu(
    "lockstep_gpu_tensor_active_ratio",
    "Share of time in which the tensor pipes worked.",
    "GPM 5 to 7 and 9, DCGM 1004, 1013 to 1015",
    (labels.PIPE,),
)
GPU_DRAM_ACTIVE = _declare_gpu(
    "lockstep_gpu_dram_active_ratio",
    "Share of time in which the memory moved data.",
    "GPM 10, DCGM 1005",
)
GPU_GRAPHICS_ACTIVE = _declare_gpu(
    "lockstep_gpu_graphics_engine_active_ratio",
    "Share of time in which the graphics and compute engine worked.",
    "GPM 1, DCGM 1001",
    for_users="dcgm-exporter: DCGM_FI_PROF_GR_ENGINE_ACTIVE",
)
# nvmlDeviceGetUtilizationRates has no data on an instance.
GPU_MIG_SM_ACTIVE = _declare_gpu(
    "lockstep_gpu_mig_sm_active_ratio",
    "Share of time in which a multiprocessor of an instance of a split GPU had work.",
    "GPM 2 of the instance",
    (labels.MIG,),
)

# Metrics of a GPU's memory faults and of the recovery that the driver demands (NVML).

GPU_ECC_ERRORS = _declare_gpu(
    "lockstep_gpu_ecc_errors_total",
    "Memory errors of the GPU, since the driver was loaded or over its life.",
    "fields 3 to 6, else nvmlDeviceGetTotalEccErrors",
    (labels.ECC, labels.ECC_SCOPE),
)
# H100 and H200 report DRAM and SRAM only; the other locations are not supported.
GPU_ECC_LOCATION_ERRORS = _declare_gpu(
    "lockstep_gpu_ecc_location_errors_total",
    "Memory errors by the kind of memory.",
    "nvmlDeviceGetMemoryErrorCounter",
    (labels.ECC, labels.ECC_SCOPE, labels.LOCATION),
)
# The flag is NVIDIA's criterion for a replacement.
GPU_SRAM_THRESHOLD_EXCEEDED = _declare_gpu(
    "lockstep_gpu_sram_ecc_threshold_exceeded",
    "1 when the GPU has so many SRAM errors that it should be replaced, else 0.",
    "nvmlDeviceGetSramEccErrorStatus",
)
GPU_REMAPPED_ROWS = _declare_gpu(
    "lockstep_gpu_remapped_rows_total",
    "Memory rows replaced by spare ones, by kind of error.",
    "nvmlDeviceGetRemappedRows",
    (labels.ECC,),
)
GPU_REMAP_PENDING = _declare_gpu(
    "lockstep_gpu_row_remap_pending",
    "1 when a row waits for a reset to be replaced, else 0.",
    "nvmlDeviceGetRemappedRows",
)
GPU_REMAP_FAILED = _declare_gpu(
    "lockstep_gpu_row_remap_failed",
    "1 when a row could not be replaced and the GPU should be, else 0.",
    "nvmlDeviceGetRemappedRows",
)
# A healthy H100 has 2,560 banks with all spare rows, an H200 3,072.
GPU_REMAP_BANKS = _declare_gpu(
    "lockstep_gpu_row_remap_banks",
    "Number of memory banks by how many spare rows they have left.",
    "nvmlDeviceGetRowRemapperHistogram",
    (labels.AVAILABILITY,),
)
# From Ampere on rows are remapped and no pages are retired.
GPU_RETIRED_PAGES = _declare_gpu(
    "lockstep_gpu_retired_pages_total",
    "Memory pages retired; on GPUs before row remapping.",
    "fields 29 and 30",
    (labels.RETIRED_BY,),
)
GPU_RETIRED_PENDING = _declare_gpu(
    "lockstep_gpu_retired_pages_pending",
    "1 when a page waits for a restart to be retired, else 0.",
    "field 31",
)
# Depends on the driver, not on the chip: 590 and later report it on a Turing too.
GPU_RECOVERY_ACTION = _declare_gpu(
    "lockstep_gpu_recovery_action_info",
    "Action that the driver demands for the GPU, always 1 on the present action.",
    "field 230",
    (labels.ACTION,),
)

# The owner of each GPU and port: an info series each, to be joined to every other by its name.

SLURM_JOB = Label(name="slurm_job", help="id of the Slurm job")
SLURM_STEP = Label(name="slurm_step", help="step of the Slurm job")
CLAIM = Label(name="claim", help="name of the resource claim, empty for a device of a plugin")

GPU_OWNER_INFO = _declare_gpu(
    "lockstep_gpu_owner_info",
    "Owner of the GPU, always 1; where several share it, their names are a list.",
    "rank pages, kubelet pod-resources, processes of the GPU, files of a Slurm prolog",
    (
        labels.PCI_BUS_ID,
        labels.MIG_UUID,
        labels.JOB_ID,
        labels.RANK,
        SLURM_JOB,
        SLURM_STEP,
        labels.NAMESPACE,
        labels.POD,
        labels.CONTAINER,
        CLAIM,
    ),
)

PORT_OWNER_INFO = Metric(
    name="lockstep_fabric_port_owner_info",
    labels=(labels.DEVICE, labels.JOB_ID, labels.RANK, SLURM_JOB, labels.NAMESPACE, labels.POD),
    help="Owners of the GPUs that this adapter is nearest to, always 1; several are a list.",
    source="owners of GPUs, and common bridges in /sys/bus/pci/devices",
)

# Metrics of a GPU's NVLinks and of their fabric; by the driver (NVML).

# 18 on H100, H200 and B200, 12 on A100.
NVLINK_LINKS = _declare_gpu(
    "lockstep_nvlink_links",
    "Number of NVLinks of the GPU by state.",
    "field 165 or nvmlDeviceGetNvLinkState of each link",
    (labels.LINK_STATE,),
)
# 26.562 GB/s per link of an H100 or H200, 53.125 GB/s of a GB200.
NVLINK_SPEED_MIN = _declare_gpu(
    "lockstep_nvlink_speed_min_bytes_per_second",
    "Line rate of the slowest active NVLink of the GPU, one direction.",
    "field 164 of each link",
)
# Scope 0xffffffff sums over the links, so that one pair of fields is read per GPU.
NVLINK_BYTES = _declare_gpu(
    "lockstep_nvlink_bytes_total",
    "Payload over all NVLinks of the GPU.",
    "fields 138 and 139 x 1024 over all links",
    (labels.DIRECTION,),
)
NVLINK_RATE = _declare_gpu(
    "lockstep_nvlink_activity_bytes_per_second",
    "Traffic over all NVLinks of the GPU since the last tick.",
    "GPM 60 and 61, DCGM 1011 and 1012",
    (labels.DIRECTION,),
)
# Fields 161 to 163 are not supported on Blackwell.
NVLINK_ERRORS = _declare_gpu(
    "lockstep_nvlink_errors_total",
    "Errors over all NVLinks of the GPU.",
    "fields 161 to 163, on Blackwell 206 to 221, before Hopper 38, 45, 52, 59, 160",
    (labels.LINK_ERROR,),
)
# All links would be 864 series a node; the worst one names the cable.
NVLINK_WORST_ERRORS = _declare_gpu(
    "lockstep_nvlink_worst_link_errors_total",
    "Errors of the GPU's NVLink that has most; absent while no link has any.",
    "the same fields by link",
    (labels.LINK,),
)
# The driver packs mantissa and exponent into one integer.
NVLINK_BIT_ERROR = _declare_gpu(
    "lockstep_nvlink_bit_error_ratio",
    "Bit error ratio of the worst NVLink of the GPU.",
    "fields 220, 222, 293",
    (labels.BER,),
    for_users="dcgm-exporter: DCGM_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER",
)
NVLINK_FABRIC_STATE = _declare_gpu(
    "lockstep_nvlink_fabric_state_info",
    "Progress of the GPU in joining the NVLink fabric, always 1 on the present state.",
    "nvmlDeviceGetGpuFabricInfoV state",
    (labels.FABRIC_STATE,),
    for_users="dcgm-exporter: DCGM_FI_DEV_FABRIC_MANAGER_STATUS",
)
NVLINK_FABRIC_INFO = _declare_gpu(
    "lockstep_nvlink_fabric_info",
    "NVLink fabric and clique of the GPU, always 1.",
    "nvmlDeviceGetGpuFabricInfoV",
    (labels.CLIQUE, labels.FABRIC),
    for_users="dcgm-exporter: DCGM_FI_DEV_FABRIC_CLUSTER_UUID, _CLIQUE_ID",
)
# The health mask says something on NVL72; an H100 has no summary.
NVLINK_FABRIC_UNHEALTHY = _declare_gpu(
    "lockstep_nvlink_fabric_unhealthy",
    "1 when the fabric's check of the GPU fails, 0 when it passes; absent without an answer.",
    "nvmlDeviceGetGpuFabricInfoV healthMask",
    (labels.CHECK,),
    for_users="dcgm-exporter: DCGM_FI_DEV_FABRIC_HEALTH_MASK",
)

# Metrics of a GPU's PCIe link; by the driver (NVML).

# A consumer GPU idles at generation 1; H100, H200 and L40S stay at their highest.
GPU_PCIE_GENERATION = _declare_gpu(
    "lockstep_gpu_pcie_link_generation",
    "Present PCIe generation of the GPU's link; an idle link may use a lower one.",
    "nvmlDeviceGetCurrPcieLinkGeneration",
)
GPU_PCIE_WIDTH = _declare_gpu(
    "lockstep_gpu_pcie_link_width_lanes",
    "Present lanes of the GPU's link.",
    "nvmlDeviceGetCurrPcieLinkWidth",
)
# A GPU of generation 5 in a slot of generation 4 has no fault: compare with what both support.
GPU_PCIE_GENERATION_MAX = _declare_gpu(
    "lockstep_gpu_pcie_link_generation_max",
    "Highest PCIe generation that both GPU and slot support.",
    "nvmlDeviceGetMaxPcieLinkGeneration",
)
GPU_PCIE_GENERATION_DEVICE_MAX = _declare_gpu(
    "lockstep_gpu_pcie_link_generation_device_max",
    "Highest PCIe generation that the GPU itself supports.",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration",
)
GPU_PCIE_WIDTH_MAX = _declare_gpu(
    "lockstep_gpu_pcie_link_width_max_lanes",
    "Most lanes that both GPU and slot support.",
    "nvmlDeviceGetMaxPcieLinkWidth",
)
# A healthy H100 shows 9 since boot: alert on the rate alone.
GPU_PCIE_REPLAYS = _declare_gpu(
    "lockstep_gpu_pcie_replays_total",
    "Packets resent on the GPU's link; a few since boot are normal, a steady rate is not.",
    "nvmlDeviceGetPcieReplayCounter",
)
GPU_PCIE_ERRORS = _declare_gpu(
    "lockstep_gpu_pcie_errors_total",
    "Errors on the GPU's link.",
    "fields 173 to 182",
    (labels.PCIE_ERROR,),
)
# Not nvmlDeviceGetPcieThroughput: it blocks for 20 ms in each direction.
GPU_PCIE_BYTES = _declare_gpu(
    "lockstep_gpu_pcie_bytes_total",
    "Traffic on the GPU's link; the driver's counter wraps and restarts.",
    "fields 197 and 198",
    (labels.DIRECTION,),
)
GPU_PCIE_RATE = _declare_gpu(
    "lockstep_gpu_pcie_activity_bytes_per_second",
    "Traffic on the GPU's link since the last tick.",
    "GPM 20 and 21, DCGM 1009 and 1010",
    (labels.DIRECTION,),
)
