"""One GPU: power, energy, clocks and temperatures, and their limits."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier, present
from lockstep_agent.collectors.gpu.reading import Values, gpu_collector, read_by_label, unscoped
from lockstep_agent.sources.nvml import Gpu
from lockstep_catalogue import gpu as metrics

_MILLI, _MEGA = 1e-3, 1e6
_GPU, _MODULE, _MEMORY = 0, 1, 2  # scopes of the power fields
# 185 is a mean over one second on Ampere (not GA100) and newer, and instantaneous on older GPUs
_POWER_AVERAGE, _POWER_INSTANT, _ENERGY, _MEMORY_TEMPERATURE = 185, 186, 83, 82
_SCALED = {
    (_POWER_AVERAGE, _GPU): (metrics.GPU_POWER_AVERAGE, _MILLI),
    (_POWER_AVERAGE, _MEMORY): (metrics.GPU_MEMORY_POWER, _MILLI),
    (_POWER_INSTANT, _MODULE): (metrics.GPU_MODULE_POWER, _MILLI),
}
_DOMAINS = {"graphics": 0, "sm": 1, "mem": 2, "video": 3}
_LIMITS = {"min": 187, "max": 188, "default": 189, "enforced": 190, "requested": 192}
# offsets from the maximum operating temperature, from Ada and Hopper on
_MARGINS = {"shutdown": 193, "slowdown": 194, "mem_max": 195, "gpu_max": 196}
# absolute temperatures, on older GPUs
_THRESHOLDS = {"shutdown": 0, "slowdown": 1, "mem_max": 2, "gpu_max": 3}


@gpu_collector(
    "gpu_power",
    Tier.EVERY_TICK,
    (*_SCALED, (_POWER_INSTANT, _GPU), (_ENERGY, 0), (_MEMORY_TEMPERATURE, 0)),
)
def power(gpu: Gpu, values: Values) -> Iterator[Reading]:
    """Watts, joules, hertz and degrees Celsius of this moment."""
    for field, (metric, factor) in _SCALED.items():
        yield from present(metric, gpu.labels, values.get(field), factor)
    milliwatts = values.get((_POWER_INSTANT, _GPU))
    if milliwatts is None:
        milliwatts = gpu.query("nvmlDeviceGetPowerUsage")
    yield from present(metrics.GPU_POWER, gpu.labels, milliwatts, _MILLI)
    # exact over any interval, unlike sampled power; Volta and newer
    millijoules = values.get((_ENERGY, 0))
    if millijoules is None:
        millijoules = gpu.query("nvmlDeviceGetTotalEnergyConsumption")
    yield from present(metrics.GPU_ENERGY, gpu.labels, millijoules, _MILLI)
    for domain, number in _DOMAINS.items():
        megahertz = gpu.query("nvmlDeviceGetClockInfo", number)
        yield from present(metrics.GPU_CLOCK, (*gpu.labels, domain), megahertz, _MEGA)
    yield from _temperatures(gpu, values)


def _temperatures(gpu: Gpu, values: Values) -> Iterator[Reading]:
    # nvmlDeviceGetTemperature goes away in CUDA 14, and older drivers lack the call with V
    core_celsius = gpu.query("nvmlDeviceGetTemperatureV", 0)
    if core_celsius is None:
        core_celsius = gpu.query("nvmlDeviceGetTemperature", 0)
    yield from present(metrics.GPU_TEMPERATURE, (*gpu.labels, "core"), core_celsius)
    memory_celsius = values.get((_MEMORY_TEMPERATURE, 0)) or None  # 0 without a sensor, as on L40S
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
    if state is not None and 0 <= state <= 15:  # noqa: PLR2004  # 32 is unknown
        yield Reading(metrics.GPU_PSTATE, gpu.labels, state)
    # margins where the driver reports margins, else temperatures
    margins = [*read_by_label(metrics.GPU_TEMPERATURE_LIMIT_MARGIN, gpu.labels, _MARGINS, values)]
    yield from margins
    for name, number in _THRESHOLDS.items() if not margins else ():
        celsius = gpu.query("nvmlDeviceGetTemperatureThreshold", number)
        yield from present(metrics.GPU_TEMPERATURE_LIMIT, (*gpu.labels, name), celsius)
