"""One GPU: power, energy, clocks and temperatures, and their limits."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.nvml import Fields, Gpu
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


class GpuPower:
    """Reads the current power, energy, clocks and temperatures."""

    name = "gpu_power"
    tier = Tier.EVERY_TICK

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        fields = ((_POWER_INSTANT, _GPU), (_ENERGY, 0), (_MEMORY_TEMPERATURE, 0))
        self._fields = Fields(gpu, (*_SCALED, *fields))

    def collect(self) -> Iterator[Reading]:
        """Readings in watts, joules, hertz and degrees Celsius."""
        values = self._fields.read()
        labels = self._gpu.labels
        for field, (metric, factor) in _SCALED.items():
            if field in values:
                yield Reading(metric, labels, values[field] * factor)
        yield from self._power_and_energy(values, labels)
        for domain, number in _DOMAINS.items():
            megahertz = self._gpu.query("nvmlDeviceGetClockInfo", number)
            if megahertz is not None:
                yield Reading(metrics.GPU_CLOCK, (*labels, domain), megahertz * _MEGA)
        yield from self._temperatures(values, labels)

    def _power_and_energy(
        self, values: dict[tuple[int, int], float], labels: tuple[str, str]
    ) -> Iterator[Reading]:
        milliwatts = values.get((_POWER_INSTANT, _GPU))
        if milliwatts is None:
            milliwatts = self._gpu.query("nvmlDeviceGetPowerUsage")
        if milliwatts is not None:
            yield Reading(metrics.GPU_POWER, labels, milliwatts * _MILLI)
        # exact over any interval, unlike sampled power; Volta and newer
        millijoules = values.get((_ENERGY, 0))
        if millijoules is None:
            millijoules = self._gpu.query("nvmlDeviceGetTotalEnergyConsumption")
        if millijoules is not None:
            yield Reading(metrics.GPU_ENERGY, labels, millijoules * _MILLI)

    def _temperatures(
        self, values: dict[tuple[int, int], float], labels: tuple[str, str]
    ) -> Iterator[Reading]:
        # nvmlDeviceGetTemperature goes away in CUDA 14, and older drivers lack the call with V
        core_celsius = self._gpu.query("nvmlDeviceGetTemperatureV", 0)
        if core_celsius is None:
            core_celsius = self._gpu.query("nvmlDeviceGetTemperature", 0)
        if core_celsius is not None:
            yield Reading(metrics.GPU_TEMPERATURE, (*labels, "core"), core_celsius)
        memory_celsius = values.get((_MEMORY_TEMPERATURE, 0))
        if memory_celsius:  # 0 without a sensor, as on an L40S
            yield Reading(metrics.GPU_TEMPERATURE, (*labels, "memory"), memory_celsius)
        margin_celsius = self._gpu.query("nvmlDeviceGetMarginTemperature")
        if margin_celsius is not None:
            yield Reading(metrics.GPU_TEMPERATURE_MARGIN, labels, margin_celsius)


class GpuLimits:
    """Reads the limits of power, clocks and temperature, which change only by hand."""

    name = "gpu_limits"
    tier = Tier.MINUTE

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._fields = Fields(
            gpu, ((field, 0) for field in (*_LIMITS.values(), *_MARGINS.values()))
        )

    def collect(self) -> Iterator[Reading]:
        """Readings in watts, hertz and degrees Celsius."""
        values, labels = self._fields.read(), self._gpu.labels
        for limit, field in _LIMITS.items():
            milliwatts = values.get((field, 0))
            if milliwatts is None and limit == "enforced":
                milliwatts = self._gpu.query("nvmlDeviceGetEnforcedPowerLimit")
            if milliwatts is not None:
                yield Reading(metrics.GPU_POWER_LIMIT, (*labels, limit), milliwatts * _MILLI)
        for domain, number in _DOMAINS.items():
            megahertz = self._gpu.query("nvmlDeviceGetMaxClockInfo", number)
            if megahertz is not None:
                yield Reading(metrics.GPU_CLOCK_MAX, (*labels, domain), megahertz * _MEGA)
        state = self._gpu.query("nvmlDeviceGetPerformanceState")
        if state is not None and 0 <= state <= 15:  # noqa: PLR2004  # 32 is unknown
            yield Reading(metrics.GPU_PSTATE, labels, state)
        yield from self._thresholds(values, labels)

    def _thresholds(
        self, values: dict[tuple[int, int], float], labels: tuple[str, str]
    ) -> Iterator[Reading]:
        """Thresholds as margins where the driver reports margins, else as temperatures."""
        margins = {
            name: values[field, 0] for name, field in _MARGINS.items() if (field, 0) in values
        }
        for name, margin in margins.items():
            yield Reading(metrics.GPU_TEMPERATURE_LIMIT_MARGIN, (*labels, name), margin)
        for name, number in _THRESHOLDS.items() if not margins else ():
            celsius = self._gpu.query("nvmlDeviceGetTemperatureThreshold", number)
            if celsius is not None:
                yield Reading(metrics.GPU_TEMPERATURE_LIMIT, (*labels, name), celsius)
