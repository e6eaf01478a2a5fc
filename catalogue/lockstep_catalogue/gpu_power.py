"""Metrics of a GPU's power, energy, clocks, throttling and temperature; by the driver (NVML)."""

from lockstep_catalogue.labels import DOMAIN, LIMIT, OF_GPU, SENSOR, STATISTIC, THRESHOLD, THROTTLE
from lockstep_catalogue.metric import Metric

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
