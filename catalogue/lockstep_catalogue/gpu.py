"""Metrics of GPUs: identity, load, power, activity, faults, owners, NVLink and PCIe traffic."""

from lockstep_catalogue.labels import (
    ACTION,
    ARCHITECTURE,
    AVAILABILITY,
    BER,
    CHECK,
    CLIQUE,
    CONTAINER,
    COUNTED_BY,
    CUDA,
    DEVICE,
    DIRECTION,
    DOMAIN,
    ECC,
    ECC_SCOPE,
    FABRIC,
    FABRIC_STATE,
    GPU_STATE,
    JOB_ID,
    LIMIT,
    LINK,
    LINK_ERROR,
    LINK_STATE,
    LOCATION,
    MIG,
    MIG_UUID,
    MINOR,
    MODEL,
    NAMESPACE,
    OF_GPU,
    PCI_BUS_ID,
    PCIE_ERROR,
    PIPE,
    POD,
    RANK,
    RETIRED_BY,
    SENSOR,
    SERIAL,
    SRAM_UNIT,
    STATISTIC,
    THRESHOLD,
    THROTTLE,
    VBIOS,
    VERSION,
)
from lockstep_catalogue.metric import Label, Metric, Stability

# Metrics of a GPU's identity, state, load and memory; by the driver (NVML).

GPU_INFO = Metric(
    name="lockstep_gpu_info",
    labels=(*OF_GPU, MODEL, ARCHITECTURE, PCI_BUS_ID, MINOR, SERIAL, VBIOS),
    help="Identity of a GPU, always 1; join on gpu and uuid; unknown is empty.",
    source="nvmlDeviceGetName, Architecture, PciInfo, MinorNumber, Serial, VbiosVersion",
    stability=Stability.STABLE,
)
GPU_DRIVER_INFO = Metric(
    name="lockstep_gpu_driver_info",
    labels=(VERSION, CUDA),
    help="Version of the GPU driver, always 1; absent without a driver.",
    source="nvmlSystemGetDriverVersion, nvmlSystemGetCudaDriverVersion_v2",
)
# A GPU that fell off the bus is in one count and missing in the other.
GPU_COUNT = Metric(
    name="lockstep_gpu_devices",
    labels=(COUNTED_BY,),
    help="GPUs of the node that driver or bus count; one is lost where the driver counts fewer.",
    source="nvmlDeviceGetCount_v2, /sys/bus/pci/devices",
)
GPU_UP = Metric(
    name="lockstep_gpu_up",
    labels=OF_GPU,
    help="1 while the driver answers for the GPU, 0 when it is lost or a call hangs.",
    source="result of the calls of one sampling",
    stability=Stability.STABLE,
)
GPU_STATE_INFO = Metric(
    name="lockstep_gpu_state_info",
    labels=(*OF_GPU, GPU_STATE),
    help="State of the driver's answers for the GPU, always 1 on the present state.",
    source="return codes of the driver, the watchdog",
    stability=Stability.STABLE,
)
# A single resident thread counts as full use; gpu_sm_active_ratio says how much works.
GPU_UTILIZATION = Metric(
    name="lockstep_gpu_utilization_ratio",
    labels=OF_GPU,
    help="Share of the driver's last window in which some kernel was resident.",
    source="nvmlDeviceGetUtilizationRates gpu",
)
GPU_MEMORY_COPY = Metric(
    name="lockstep_gpu_memory_copy_utilization_ratio",
    labels=OF_GPU,
    help="Share of the driver's last window in which memory was read or written.",
    source="nvmlDeviceGetUtilizationRates memory",
)
GPU_MEMORY_TOTAL = Metric(
    name="lockstep_gpu_memory_total_bytes",
    labels=OF_GPU,
    help="Memory of the GPU.",
    source="nvmlDeviceGetMemoryInfo total",
)
GPU_MEMORY_USED = Metric(
    name="lockstep_gpu_memory_used_bytes",
    labels=OF_GPU,
    help="Memory of the GPU in use.",
    source="nvmlDeviceGetMemoryInfo used",
)
GPU_MEMORY_FREE = Metric(
    name="lockstep_gpu_memory_free_bytes",
    labels=OF_GPU,
    help="Memory of the GPU that is free.",
    source="nvmlDeviceGetMemoryInfo free",
)
# Version 1 of the call counts the reserved part as used.
GPU_MEMORY_RESERVED = Metric(
    name="lockstep_gpu_memory_reserved_bytes",
    labels=OF_GPU,
    help="Memory of the GPU that driver and firmware reserve.",
    source="nvmlDeviceGetMemoryInfo_v2 reserved",
)
GPU_BAR1_USED = Metric(
    name="lockstep_gpu_bar1_used_bytes",
    labels=OF_GPU,
    help="Used part of the BAR1 window, through which bus and network cards access the memory.",
    source="nvmlDeviceGetBAR1MemoryInfo bar1Used",
)
# In another pid namespace the driver's process ids mean nothing.
GPU_PROCESSES = Metric(
    name="lockstep_gpu_processes",
    labels=OF_GPU,
    help="Number of compute processes on the GPU; needs the pid namespace of the host.",
    source="nvmlDeviceGetComputeRunningProcesses_v3",
)
GPU_MIG_ENABLED = Metric(
    name="lockstep_gpu_mig_enabled",
    labels=OF_GPU,
    help="1 when the GPU is split into instances, else 0.",
    source="nvmlDeviceGetMigMode",
)
GPU_MIG_INFO = Metric(
    name="lockstep_gpu_mig_info",
    labels=(*OF_GPU, MIG, MIG_UUID),
    help="An instance of a split GPU, always 1.",
    source="nvmlDeviceGetMigDeviceHandleByIndex, nvmlDeviceGetUUID",
)
GPU_MIG_MEMORY_TOTAL = Metric(
    name="lockstep_gpu_mig_memory_total_bytes",
    labels=(*OF_GPU, MIG),
    help="Memory of an instance of a split GPU.",
    source="nvmlDeviceGetMemoryInfo of the instance",
)
GPU_MIG_MEMORY_USED = Metric(
    name="lockstep_gpu_mig_memory_used_bytes",
    labels=(*OF_GPU, MIG),
    help="Memory of an instance of a split GPU in use.",
    source="nvmlDeviceGetMemoryInfo of the instance",
)

# Metrics of a GPU's power, energy, clocks, throttling and temperature; by the driver (NVML).

# nvmlDeviceGetPowerUsage is a mean over a second on most GPUs from Ampere on; field 186 is
# instantaneous.
GPU_POWER = Metric(
    name="lockstep_gpu_power_watts",
    labels=OF_GPU,
    help="Power drawn by the GPU when it was sampled.",
    source="field 186, else nvmlDeviceGetPowerUsage / 1000",
)
GPU_POWER_AVERAGE = Metric(
    name="lockstep_gpu_power_average_watts",
    labels=OF_GPU,
    help="Power drawn by the GPU, averaged by the driver over about a second.",
    source="field 185 / 1000",
)
# Scope 2 is measured on Hopper: 43 W on an idle H200, 98 W on a loaded one.
GPU_MEMORY_POWER = Metric(
    name="lockstep_gpu_memory_power_watts",
    labels=OF_GPU,
    help="Power drawn by the memory of the GPU, averaged by the driver.",
    source="field 185 of scope 2 / 1000",
)
GPU_MODULE_POWER = Metric(
    name="lockstep_gpu_module_power_watts",
    labels=OF_GPU,
    help="Power drawn by the module of GPU and CPU.",
    source="field 186 of scope 1 / 1000",
)
# Its rate is the true mean power, which no sampling can miss.
GPU_ENERGY = Metric(
    name="lockstep_gpu_energy_joules_total",
    labels=OF_GPU,
    help="Energy used by the GPU since the driver was loaded.",
    source="field 83, else nvmlDeviceGetTotalEnergyConsumption / 1000",
)
GPU_POWER_LIMIT = Metric(
    name="lockstep_gpu_power_limit_watts",
    labels=(*OF_GPU, LIMIT),
    help="Limits on the power of the GPU.",
    source="fields 187 to 190, 192 / 1000, nvmlDeviceGetEnforcedPowerLimit",
)
# The driver keeps a ring of its own samples with times: extremes below a second need no fast loop.
GPU_POWER_WINDOW = Metric(
    name="lockstep_gpu_power_window_watts",
    labels=(*OF_GPU, STATISTIC),
    help="Power of the GPU over the agent's window, from the driver's own samples.",
    source="nvmlDeviceGetSamples of total power",
)
GPU_UTILIZATION_WINDOW = Metric(
    name="lockstep_gpu_utilization_window_ratio",
    labels=(*OF_GPU, STATISTIC),
    help="Utilization of the GPU over the agent's window, from the driver's own samples.",
    source="nvmlDeviceGetSamples of GPU utilization",
)
GPU_CLOCK_WINDOW = Metric(
    name="lockstep_gpu_clock_window_hertz",
    labels=(*OF_GPU, STATISTIC),
    help="Processor clock of the GPU over the agent's window, from the driver's own samples.",
    source="nvmlDeviceGetSamples of the processor clock",
)
GPU_CLOCK = Metric(
    name="lockstep_gpu_clock_hertz",
    labels=(*OF_GPU, DOMAIN),
    help="Clock of the GPU by domain.",
    source="nvmlDeviceGetClockInfo x 1e6",
)
GPU_CLOCK_MAX = Metric(
    name="lockstep_gpu_clock_max_hertz",
    labels=(*OF_GPU, DOMAIN),
    help="Highest clock of the GPU by domain.",
    source="nvmlDeviceGetMaxClockInfo x 1e6",
)
GPU_PSTATE = Metric(
    name="lockstep_gpu_performance_state",
    labels=OF_GPU,
    help="Performance state, from 0, the fastest, to 15.",
    source="nvmlDeviceGetPerformanceState",
)
# An H100 and an H200 report the nine bits 0x1ff as supported.
GPU_THROTTLE_ACTIVE = Metric(
    name="lockstep_gpu_throttle_active",
    labels=(*OF_GPU, THROTTLE),
    help="1 while the driver holds the clocks back for this reason, else 0.",
    source="nvmlDeviceGetCurrentClocksEventReasons",
)
# A counter in nanoseconds: it misses nothing between two polls, as the bits of the moment do.
GPU_THROTTLE_SECONDS = Metric(
    name="lockstep_gpu_throttle_seconds_total",
    labels=(*OF_GPU, THROTTLE),
    help="Time for which the clocks were held back for this reason.",
    source="fields 74, 76, 269, 270, 271 / 1e9, before them 75",
)
# nvmlDeviceGetTemperature goes away with CUDA 14; an L40S has no memory sensor.
GPU_TEMPERATURE = Metric(
    name="lockstep_gpu_temperature_celsius",
    labels=(*OF_GPU, SENSOR),
    help="Temperature of the GPU by sensor.",
    source="nvmlDeviceGetTemperatureV, field 82",
)
GPU_TEMPERATURE_MARGIN = Metric(
    name="lockstep_gpu_temperature_margin_celsius",
    labels=OF_GPU,
    help="Margin of the GPU below its highest temperature of normal operation.",
    source="nvmlDeviceGetMarginTemperature",
)
GPU_TEMPERATURE_LIMIT = Metric(
    name="lockstep_gpu_temperature_limit_celsius",
    labels=(*OF_GPU, THRESHOLD),
    help="Temperature from which the driver acts, where it reports one.",
    source="nvmlDeviceGetTemperatureThreshold",
)
# From Ada and Hopper on thresholds are offsets from T.Limit. Fixed limits of 85 or 90 C would be
# wrong: an H100 slows down at 89 C.
GPU_TEMPERATURE_LIMIT_MARGIN = Metric(
    name="lockstep_gpu_temperature_limit_margin_celsius",
    labels=(*OF_GPU, THRESHOLD),
    help="Margin at which the driver acts, where it reports thresholds as margins.",
    source="fields 193 to 196",
)

# Metrics of the activity of a GPU's units: by GPM from Hopper on, by DCGM before.

# GPM takes two samples at least 100 ms apart, and no lock on the profiler, so Nsight can run beside
# it.
GPU_SM_ACTIVE = Metric(
    name="lockstep_gpu_sm_active_ratio",
    labels=OF_GPU,
    help="Share of time, over all multiprocessors, in which one had work.",
    source="GPM 2, DCGM 1002",
)
GPU_SM_ACTIVE_WINDOW = Metric(
    name="lockstep_gpu_sm_active_window_ratio",
    labels=(*OF_GPU, STATISTIC),
    help="Activity of the multiprocessors over the agent's window, from its ticks.",
    source="GPM 2 of each tick",
)
GPU_SM_OCCUPANCY = Metric(
    name="lockstep_gpu_sm_occupancy_ratio",
    labels=OF_GPU,
    help="Warps resident on the multiprocessors as a share of the most that fit.",
    source="GPM 3, DCGM 1003",
)
GPU_TENSOR_ACTIVE = Metric(
    name="lockstep_gpu_tensor_active_ratio",
    labels=(*OF_GPU, PIPE),
    help="Share of time in which the tensor pipes worked.",
    source="GPM 5 to 7 and 9, DCGM 1004, 1013 to 1015",
)
GPU_DRAM_ACTIVE = Metric(
    name="lockstep_gpu_dram_active_ratio",
    labels=OF_GPU,
    help="Share of time in which the memory moved data.",
    source="GPM 10, DCGM 1005",
)
GPU_GRAPHICS_ACTIVE = Metric(
    name="lockstep_gpu_graphics_engine_active_ratio",
    labels=OF_GPU,
    help="Share of time in which the graphics and compute engine worked.",
    source="GPM 1, DCGM 1001",
)
# nvmlDeviceGetUtilizationRates has no data on an instance.
GPU_MIG_SM_ACTIVE = Metric(
    name="lockstep_gpu_mig_sm_active_ratio",
    labels=(*OF_GPU, MIG),
    help="Share of time in which a multiprocessor of an instance of a split GPU had work.",
    source="GPM 2 of the instance",
)

# Metrics of a GPU's memory faults and of the recovery that the driver demands (NVML).

GPU_ECC_ERRORS = Metric(
    name="lockstep_gpu_ecc_errors_total",
    labels=(*OF_GPU, ECC, ECC_SCOPE),
    help="Memory errors of the GPU, since the driver was loaded or over its life.",
    source="fields 3 to 6, else nvmlDeviceGetTotalEccErrors",
)
# H100 and H200 report DRAM and SRAM only; the other locations are not supported.
GPU_ECC_LOCATION_ERRORS = Metric(
    name="lockstep_gpu_ecc_location_errors_total",
    labels=(*OF_GPU, ECC, ECC_SCOPE, LOCATION),
    help="Memory errors by the kind of memory.",
    source="nvmlDeviceGetMemoryErrorCounter",
)
# The flag is NVIDIA's criterion for a replacement.
GPU_SRAM_THRESHOLD_EXCEEDED = Metric(
    name="lockstep_gpu_sram_ecc_threshold_exceeded",
    labels=OF_GPU,
    help="1 when the GPU has so many SRAM errors that it should be replaced, else 0.",
    source="nvmlDeviceGetSramEccErrorStatus",
)
GPU_SRAM_UNCORRECTED = Metric(
    name="lockstep_gpu_sram_uncorrected_errors_total",
    labels=(*OF_GPU, SRAM_UNIT),
    help="Uncorrected SRAM errors over the life of the GPU, by unit.",
    source="nvmlDeviceGetSramEccErrorStatus",
)
GPU_REMAPPED_ROWS = Metric(
    name="lockstep_gpu_remapped_rows_total",
    labels=(*OF_GPU, ECC),
    help="Memory rows replaced by spare ones, by kind of error.",
    source="nvmlDeviceGetRemappedRows",
)
GPU_REMAP_PENDING = Metric(
    name="lockstep_gpu_row_remap_pending",
    labels=OF_GPU,
    help="1 when a row waits for a reset to be replaced, else 0.",
    source="nvmlDeviceGetRemappedRows",
)
GPU_REMAP_FAILED = Metric(
    name="lockstep_gpu_row_remap_failed",
    labels=OF_GPU,
    help="1 when a row could not be replaced and the GPU should be, else 0.",
    source="nvmlDeviceGetRemappedRows",
)
# A healthy H100 has 2,560 banks with all spare rows, an H200 3,072.
GPU_REMAP_BANKS = Metric(
    name="lockstep_gpu_row_remap_banks",
    labels=(*OF_GPU, AVAILABILITY),
    help="Number of memory banks by how many spare rows they have left.",
    source="nvmlDeviceGetRowRemapperHistogram",
)
# From Ampere on rows are remapped and no pages are retired.
GPU_RETIRED_PAGES = Metric(
    name="lockstep_gpu_retired_pages_total",
    labels=(*OF_GPU, RETIRED_BY),
    help="Memory pages retired; on GPUs before row remapping.",
    source="fields 29 and 30",
)
GPU_RETIRED_PENDING = Metric(
    name="lockstep_gpu_retired_pages_pending",
    labels=OF_GPU,
    help="1 when a page waits for a restart to be retired, else 0.",
    source="field 31",
)
# Depends on the driver, not on the chip: 590 and later report it on a Turing too.
GPU_RECOVERY_ACTION = Metric(
    name="lockstep_gpu_recovery_action_info",
    labels=(*OF_GPU, ACTION),
    help="Action that the driver demands for the GPU, always 1 on the present action.",
    source="field 230",
)

# The owner of each GPU and port: an info series each, to be joined to every other by its name.

SLURM_JOB = Label(name="slurm_job", help="id of the Slurm job")
SLURM_STEP = Label(name="slurm_step", help="step of the Slurm job")
CLAIM = Label(name="claim", help="name of the resource claim, empty for a device of a plugin")

GPU_OWNER_INFO = Metric(
    name="lockstep_gpu_owner_info",
    labels=(
        *OF_GPU,
        PCI_BUS_ID,
        MIG_UUID,
        JOB_ID,
        RANK,
        SLURM_JOB,
        SLURM_STEP,
        NAMESPACE,
        POD,
        CONTAINER,
        CLAIM,
    ),
    help="Owner of the GPU, always 1; where several share it, their names are a list.",
    source="rank pages, kubelet pod-resources, processes of the GPU, files of a Slurm prolog",
)

PORT_OWNER_INFO = Metric(
    name="lockstep_fabric_port_owner_info",
    labels=(DEVICE, JOB_ID, RANK, SLURM_JOB, NAMESPACE, POD),
    help="Owners of the GPUs that this adapter is nearest to, always 1; several are a list.",
    source="owners of GPUs, and common bridges in /sys/bus/pci/devices",
)

# Metrics of a GPU's NVLinks and of their fabric; by the driver (NVML).

# 18 on H100, H200 and B200, 12 on A100.
NVLINK_LINKS = Metric(
    name="lockstep_nvlink_links",
    labels=(*OF_GPU, LINK_STATE),
    help="Number of NVLinks of the GPU by state.",
    source="field 165 or nvmlDeviceGetNvLinkState of each link",
)
# 26.562 GB/s per link of an H100 or H200, 53.125 GB/s of a GB200.
NVLINK_SPEED_MIN = Metric(
    name="lockstep_nvlink_speed_min_bytes_per_second",
    labels=OF_GPU,
    help="Line rate of the slowest active NVLink of the GPU, one direction.",
    source="field 164 of each link",
)
# Scope 0xffffffff sums over the links, so that one pair of fields is read per GPU.
NVLINK_BYTES = Metric(
    name="lockstep_nvlink_bytes_total",
    labels=(*OF_GPU, DIRECTION),
    help="Payload over all NVLinks of the GPU.",
    source="fields 138 and 139 x 1024 over all links",
)
NVLINK_RATE = Metric(
    name="lockstep_nvlink_activity_bytes_per_second",
    labels=(*OF_GPU, DIRECTION),
    help="Traffic over all NVLinks of the GPU since the last tick.",
    source="GPM 60 and 61, DCGM 1011 and 1012",
)
# Fields 161 to 163 are not supported on Blackwell.
NVLINK_ERRORS = Metric(
    name="lockstep_nvlink_errors_total",
    labels=(*OF_GPU, LINK_ERROR),
    help="Errors over all NVLinks of the GPU.",
    source="fields 161 to 163, on Blackwell 206 to 221, before Hopper 38, 45, 52, 59, 160",
)
# All links would be 864 series a node; the worst one names the cable.
NVLINK_WORST_ERRORS = Metric(
    name="lockstep_nvlink_worst_link_errors_total",
    labels=(*OF_GPU, LINK),
    help="Errors of the GPU's NVLink that has most; absent while no link has any.",
    source="the same fields by link",
)
# The driver packs mantissa and exponent into one integer.
NVLINK_BIT_ERROR = Metric(
    name="lockstep_nvlink_bit_error_ratio",
    labels=(*OF_GPU, BER),
    help="Bit error ratio of the worst NVLink of the GPU.",
    source="fields 220, 222, 293",
)
NVLINK_FABRIC_STATE = Metric(
    name="lockstep_nvlink_fabric_state_info",
    labels=(*OF_GPU, FABRIC_STATE),
    help="Progress of the GPU in joining the NVLink fabric, always 1 on the present state.",
    source="nvmlDeviceGetGpuFabricInfoV state",
)
NVLINK_FABRIC_INFO = Metric(
    name="lockstep_nvlink_fabric_info",
    labels=(*OF_GPU, CLIQUE, FABRIC),
    help="NVLink fabric and clique of the GPU, always 1.",
    source="nvmlDeviceGetGpuFabricInfoV",
)
# The health mask says something on NVL72; an H100 has no summary.
NVLINK_FABRIC_UNHEALTHY = Metric(
    name="lockstep_nvlink_fabric_unhealthy",
    labels=(*OF_GPU, CHECK),
    help="1 when the fabric's check of the GPU fails, 0 when it passes; absent without an answer.",
    source="nvmlDeviceGetGpuFabricInfoV healthMask",
)

# Metrics of a GPU's PCIe link; by the driver (NVML).

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
