"""One GPU: power, clocks and temperatures, their limits, and what holds the clocks back."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier, present
from lockstep_agent.collectors.gpu.reading import Values, gpu_collector, read_by_label, unscoped
from lockstep_agent.sources.nvml import Gpu, ids
from lockstep_catalogue import gpu as metrics

_MILLI, _MEGA = 1e-3, 1e6
_POWER = (ids.NVML_FI_DEV_POWER_INSTANT, ids.NVML_POWER_SCOPE_GPU)
_ENERGY = (ids.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, 0)
_MEMORY_TEMPERATURE = (ids.NVML_FI_DEV_MEMORY_TEMP, 0)
# the average is over one second on Ampere (not GA100) and newer, and instantaneous on older GPUs
_OTHER_POWER = {
    (ids.NVML_FI_DEV_POWER_AVERAGE, ids.NVML_POWER_SCOPE_GPU): metrics.GPU_POWER_AVERAGE
}
_DOMAINS = {
    "graphics": ids.NVML_CLOCK_GRAPHICS,
    "sm": ids.NVML_CLOCK_SM,
    "mem": ids.NVML_CLOCK_MEM,
    "video": ids.NVML_CLOCK_VIDEO,
}
_LIMITS = {
    "min": ids.NVML_FI_DEV_POWER_MIN_LIMIT,
    "max": ids.NVML_FI_DEV_POWER_MAX_LIMIT,
    "default": ids.NVML_FI_DEV_POWER_DEFAULT_LIMIT,
    "enforced": ids.NVML_FI_DEV_POWER_CURRENT_LIMIT,
    "requested": ids.NVML_FI_DEV_POWER_REQUESTED_LIMIT,
}
# offsets from the maximum operating temperature, from Ada and Hopper on
_MARGINS = {
    "shutdown": ids.NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT,
    "slowdown": ids.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT,
    "mem_max": ids.NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT,
    "gpu_max": ids.NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT,
}
# absolute temperatures, on older GPUs
_THRESHOLDS = {
    "shutdown": ids.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
    "slowdown": ids.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
    "mem_max": ids.NVML_TEMPERATURE_THRESHOLD_MEM_MAX,
    "gpu_max": ids.NVML_TEMPERATURE_THRESHOLD_GPU_MAX,
}
_REASON_BITS = {
    "idle": ids.nvmlClocksEventReasonGpuIdle,
    "app_clocks": ids.nvmlClocksEventReasonApplicationsClocksSetting,
    "sw_power_cap": ids.nvmlClocksEventReasonSwPowerCap,
    "hw_slowdown": ids.nvmlClocksEventReasonHwSlowdown,
    "sync_boost": ids.nvmlClocksEventReasonSyncBoost,
    "sw_thermal": ids.nvmlClocksEventReasonSwThermalSlowdown,
    "hw_thermal": ids.nvmlClocksEventReasonHwThermalSlowdown,
    "hw_power_brake": ids.nvmlClocksEventReasonHwPowerBrakeSlowdown,
    "display": ids.nvmlClocksEventReasonDisplayClockSetting,
}
# fields in nanoseconds (nvidia-smi prints microseconds); whether they exist depends on the driver,
# not on the chip. Driver 575 alone has the last three at 251 to 253, and at these numbers settings
# of power smoothing, which it answers on Blackwell only
_HELD_BACK = {
    "sw_power_cap": ids.NVML_FI_DEV_PERF_POLICY_POWER,
    "sync_boost": ids.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST,
    "sw_thermal": ids.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
    "hw_thermal": ids.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
    "hw_power_brake": ids.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
}
# older drivers have one counter for all thermal reasons
_ANY_THERMAL = ids.NVML_FI_DEV_PERF_POLICY_THERMAL
_NANO = 1e-9


@gpu_collector("gpu_power", Tier.EVERY_TICK, (*_OTHER_POWER, _POWER, _ENERGY, _MEMORY_TEMPERATURE))
def power(gpu: Gpu, values: Values) -> Iterator[Reading]:
    """Watts, joules, hertz and degrees Celsius of this moment."""
    for field, metric in _OTHER_POWER.items():
        yield from present(metric, gpu.labels, values.get(field), _MILLI)
    milliwatts = values.get(_POWER)
    if milliwatts is None:
        milliwatts = gpu.query("nvmlDeviceGetPowerUsage")
    yield from present(metrics.GPU_POWER, gpu.labels, milliwatts, _MILLI)
    # exact over any interval, unlike sampled power; Volta and newer
    millijoules = values.get(_ENERGY)
    if millijoules is None:
        millijoules = gpu.query("nvmlDeviceGetTotalEnergyConsumption")
    yield from present(metrics.GPU_ENERGY, gpu.labels, millijoules, _MILLI)
    for domain, number in _DOMAINS.items():
        megahertz = gpu.query("nvmlDeviceGetClockInfo", number)
        yield from present(metrics.GPU_CLOCK, (*gpu.labels, domain), megahertz, _MEGA)
    yield from _temperatures(gpu, values)


def _temperatures(gpu: Gpu, values: Values) -> Iterator[Reading]:
    # nvmlDeviceGetTemperature goes away in CUDA 14, and older drivers lack the call with V
    core_celsius = gpu.query("nvmlDeviceGetTemperatureV", ids.NVML_TEMPERATURE_GPU)
    if core_celsius is None:
        core_celsius = gpu.query("nvmlDeviceGetTemperature", ids.NVML_TEMPERATURE_GPU)
    yield from present(metrics.GPU_TEMPERATURE, (*gpu.labels, "core"), core_celsius)
    memory_celsius = values.get(_MEMORY_TEMPERATURE) or None  # 0 without a sensor, as on L40S
    yield from present(metrics.GPU_TEMPERATURE, (*gpu.labels, "memory"), memory_celsius)
    margin_celsius = gpu.query("nvmlDeviceGetMarginTemperature")
    yield from present(metrics.GPU_TEMPERATURE_MARGIN, gpu.labels, margin_celsius)


@gpu_collector("gpu_limits", Tier.MINUTE, unscoped(*_LIMITS.values(), *_MARGINS.values()))
def limits(gpu: Gpu, values: Values) -> Iterator[Reading]:
    """Limits of power, clocks and temperature, which change only by hand."""
    for limit, field in _LIMITS.items():
        milliwatts = values.get((field, 0))
        if milliwatts is None and limit == "enforced":
            milliwatts = gpu.query("nvmlDeviceGetEnforcedPowerLimit")
        yield from present(metrics.GPU_POWER_LIMIT, (*gpu.labels, limit), milliwatts, _MILLI)
    for domain, number in _DOMAINS.items():
        megahertz = gpu.query("nvmlDeviceGetMaxClockInfo", number)
        yield from present(metrics.GPU_CLOCK_MAX, (*gpu.labels, domain), megahertz, _MEGA)
    state = gpu.query("nvmlDeviceGetPerformanceState")
    if state is not None and 0 <= state <= ids.NVML_PSTATE_15:  # 32 is unknown
        yield Reading(metrics.GPU_PSTATE, gpu.labels, state)
    # margins where the driver reports margins, else temperatures
    margins = [*read_by_label(metrics.GPU_TEMPERATURE_LIMIT_MARGIN, gpu.labels, _MARGINS, values)]
    yield from margins
    for name, number in _THRESHOLDS.items() if not margins else ():
        celsius = gpu.query("nvmlDeviceGetTemperatureThreshold", number)
        yield from present(metrics.GPU_TEMPERATURE_LIMIT, (*gpu.labels, name), celsius)


@gpu_collector("gpu_throttle", Tier.TEN_SECONDS)
def throttle_reasons(gpu: Gpu, _: Values) -> Iterator[Reading]:
    """0 or 1 for each reason, whether it holds at this moment."""
    # the call with ThrottleReasons goes away in CUDA 14, and older drivers lack the other
    mask = gpu.query("nvmlDeviceGetCurrentClocksEventReasons")
    if mask is None:
        mask = gpu.query("nvmlDeviceGetCurrentClocksThrottleReasons")
    for reason, bit in _REASON_BITS.items() if mask is not None else ():
        labels = (*gpu.labels, reason)
        yield Reading(metrics.GPU_THROTTLE_ACTIVE, labels, 1 if mask & bit else 0)


@gpu_collector(
    "gpu_throttle_seconds", Tier.TEN_SECONDS, unscoped(*_HELD_BACK.values(), _ANY_THERMAL)
)
def throttle_seconds(gpu: Gpu, values: Values) -> Iterator[Reading]:
    """Seconds by reason: the driver's counters miss nothing between two polls."""
    any_thermal = values.get((_ANY_THERMAL, 0))
    for reason, field in _HELD_BACK.items():
        nanoseconds = values.get((field, 0), any_thermal if reason == "sw_thermal" else None)
        labels = (*gpu.labels, reason)
        yield from present(metrics.GPU_THROTTLE_SECONDS, labels, nanoseconds, _NANO)
