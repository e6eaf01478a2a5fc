"""Metrics of a GPU's identity, state, load and memory; by the driver (NVML)."""

from lockstep_catalogue.labels import (
    ARCHITECTURE,
    COUNTED_BY,
    CUDA,
    GPU_STATE,
    MIG,
    MIG_UUID,
    MINOR,
    MODEL,
    OF_GPU,
    PCI_BUS_ID,
    SERIAL,
    VBIOS,
    VERSION,
)
from lockstep_catalogue.metric import Metric, Stability

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
    help="GPUs of the node by who counts them; fewer by the driver than on the bus: one is lost.",
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
