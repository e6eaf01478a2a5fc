"""What the driver tells of a GPU; sources and units by agent-counters of NVML."""

from lockstep_catalogue.labels import DOMAIN, GPU, MODEL, UUID, VERSION
from lockstep_catalogue.metric import Kind, Metric, Stability, Unit

_OF_GPU = (GPU, UUID)

GPU_INFO = Metric(
    name="lockstep_gpu_info",
    kind=Kind.GAUGE,
    unit=Unit.NONE,
    labels=(*_OF_GPU, MODEL),
    help="Identity of a GPU, always 1, to be joined on gpu and uuid.",
    source="nvmlDeviceGetName, nvmlDeviceGetUUID",
    stability=Stability.STABLE,
)
GPU_DRIVER_INFO = Metric(
    name="lockstep_gpu_driver_info",
    kind=Kind.GAUGE,
    unit=Unit.NONE,
    labels=(VERSION,),
    help="Version of the GPU driver, always 1; absent where there is no driver.",
    source="nvmlSystemGetDriverVersion",
)
GPU_UP = Metric(
    name="lockstep_gpu_up",
    kind=Kind.GAUGE,
    unit=Unit.NONE,
    labels=_OF_GPU,
    help="1 while the driver answers for the GPU, 0 when it is lost or needs a reset.",
    source="result of the calls of one sampling",
    stability=Stability.STABLE,
)
GPU_UTILIZATION = Metric(
    name="lockstep_gpu_utilization_ratio",
    kind=Kind.GAUGE,
    unit=Unit.RATIO,
    labels=_OF_GPU,
    help="Share of the driver's last window in which some kernel was resident.",
    source="nvmlDeviceGetUtilizationRates gpu",
)
GPU_MEMORY_TOTAL = Metric(
    name="lockstep_gpu_memory_total_bytes",
    kind=Kind.GAUGE,
    unit=Unit.BYTES,
    labels=_OF_GPU,
    help="Memory of the GPU.",
    source="nvmlDeviceGetMemoryInfo total",
)
GPU_MEMORY_USED = Metric(
    name="lockstep_gpu_memory_used_bytes",
    kind=Kind.GAUGE,
    unit=Unit.BYTES,
    labels=_OF_GPU,
    help="Memory of the GPU in use.",
    source="nvmlDeviceGetMemoryInfo used",
)
GPU_POWER = Metric(
    name="lockstep_gpu_power_watts",
    kind=Kind.GAUGE,
    unit=Unit.WATTS,
    labels=_OF_GPU,
    help="Power drawn by the GPU.",
    source="nvmlDeviceGetPowerUsage / 1000",
)
GPU_ENERGY = Metric(
    name="lockstep_gpu_energy_joules_total",
    kind=Kind.COUNTER,
    unit=Unit.JOULES,
    labels=_OF_GPU,
    help="Energy used by the GPU since the driver was loaded.",
    source="nvmlDeviceGetTotalEnergyConsumption / 1000",
)
GPU_TEMPERATURE = Metric(
    name="lockstep_gpu_temperature_celsius",
    kind=Kind.GAUGE,
    unit=Unit.CELSIUS,
    labels=_OF_GPU,
    help="Temperature of the GPU core.",
    source="nvmlDeviceGetTemperature",
)
GPU_CLOCK = Metric(
    name="lockstep_gpu_clock_hertz",
    kind=Kind.GAUGE,
    unit=Unit.HERTZ,
    labels=(*_OF_GPU, DOMAIN),
    help="Clock of the GPU by domain.",
    source="nvmlDeviceGetClockInfo x 1e6",
)

METRICS = (
    GPU_INFO,
    GPU_DRIVER_INFO,
    GPU_UP,
    GPU_UTILIZATION,
    GPU_MEMORY_TOTAL,
    GPU_MEMORY_USED,
    GPU_POWER,
    GPU_ENERGY,
    GPU_TEMPERATURE,
    GPU_CLOCK,
)
