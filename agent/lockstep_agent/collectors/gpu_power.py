"""One GPU: power and energy, clocks, temperatures and how far they are from their limits."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.nvml import Fields, Gpu
from lockstep_catalogue import gpu_power as metrics

_MILLI, _MEGA = 1e-3, 1e6
_WHOLE, _MODULE, _MEMORY = 0, 1, 2  # scopes of the power fields
_POWER_AVERAGE, _POWER_INSTANT, _ENERGY, _MEMORY_TEMPERATURE = 185, 186, 83, 82
_SCALED = {
    (_POWER_AVERAGE, _WHOLE): (metrics.GPU_POWER_AVERAGE, _MILLI),
    (_POWER_AVERAGE, _MEMORY): (metrics.GPU_MEMORY_POWER, _MILLI),
    (_POWER_INSTANT, _MODULE): (metrics.GPU_MODULE_POWER, _MILLI),
}
_DOMAINS = {"graphics": 0, "sm": 1, "mem": 2, "video": 3}
_LIMITS = {"min": 187, "max": 188, "default": 189, "enforced": 190, "requested": 192}
_MARGINS = {"shutdown": 193, "slowdown": 194, "mem_max": 195, "gpu_max": 196}
_THRESHOLDS = {"shutdown": 0, "slowdown": 1, "mem_max": 2, "gpu_max": 3}


class Power:
    """Reads power, energy, clocks and temperatures of this moment."""

    name = "gpu_power"
    tier = Tier.EVERY_TICK

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        more = ((_POWER_INSTANT, _WHOLE), (_ENERGY, 0), (_MEMORY_TEMPERATURE, 0))
        self._fields = Fields(gpu, (*_SCALED, *more))

    def collect(self) -> Iterator[Reading]:
        """In watts, joules, hertz and degrees Celsius."""
        values = self._fields.read()
        labels = self._gpu.labels
        for field, (metric, factor) in _SCALED.items():
            if field in values:
                yield Reading(metric, labels, values[field] * factor)
        yield from self._of_the_gpu(values, labels)
        for domain, number in _DOMAINS.items():
            clock = self._gpu.ask("nvmlDeviceGetClockInfo", number)
            if clock is not None:
                yield Reading(metrics.GPU_CLOCK, (*labels, domain), clock * _MEGA)
        yield from self._temperatures(values, labels)

    def _of_the_gpu(
        self, values: dict[tuple[int, int], float], labels: tuple[str, str]
    ) -> Iterator[Reading]:
        power = values.get((_POWER_INSTANT, _WHOLE))
        if power is None:
            power = self._gpu.ask("nvmlDeviceGetPowerUsage")
        if power is not None:
            yield Reading(metrics.GPU_POWER, labels, power * _MILLI)
        energy = values.get((_ENERGY, 0))
        if energy is None:
            energy = self._gpu.ask("nvmlDeviceGetTotalEnergyConsumption")
        if energy is not None:
            yield Reading(metrics.GPU_ENERGY, labels, energy * _MILLI)

    def _temperatures(
        self, values: dict[tuple[int, int], float], labels: tuple[str, str]
    ) -> Iterator[Reading]:
        core = self._gpu.ask("nvmlDeviceGetTemperatureV", 0)
        if core is None:
            core = self._gpu.ask("nvmlDeviceGetTemperature", 0)
        if core is not None:
            yield Reading(metrics.GPU_TEMPERATURE, (*labels, "core"), core)
        memory = values.get((_MEMORY_TEMPERATURE, 0))
        if memory:  # 0 where there is no sensor
            yield Reading(metrics.GPU_TEMPERATURE, (*labels, "memory"), memory)
        margin = self._gpu.ask("nvmlDeviceGetMarginTemperature")
        if margin is not None:
            yield Reading(metrics.GPU_TEMPERATURE_MARGIN, labels, margin)


class Limits:
    """Reads what bounds power, clocks and temperature; it changes by hand, if at all."""

    name = "gpu_limits"
    tier = Tier.MINUTE

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._fields = Fields(
            gpu, ((field, 0) for field in (*_LIMITS.values(), *_MARGINS.values()))
        )

    def collect(self) -> Iterator[Reading]:
        """In watts, hertz and degrees Celsius."""
        values, labels = self._fields.read(), self._gpu.labels
        for limit, field in _LIMITS.items():
            watts = values.get((field, 0))
            if watts is None and limit == "enforced":
                watts = self._gpu.ask("nvmlDeviceGetEnforcedPowerLimit")
            if watts is not None:
                yield Reading(metrics.GPU_POWER_LIMIT, (*labels, limit), watts * _MILLI)
        for domain, number in _DOMAINS.items():
            clock = self._gpu.ask("nvmlDeviceGetMaxClockInfo", number)
            if clock is not None:
                yield Reading(metrics.GPU_CLOCK_MAX, (*labels, domain), clock * _MEGA)
        state = self._gpu.ask("nvmlDeviceGetPerformanceState")
        if state is not None and 0 <= state <= 15:  # noqa: PLR2004  # 32 says unknown
            yield Reading(metrics.GPU_PSTATE, labels, state)
        yield from self._thresholds(values, labels)

    def _thresholds(
        self, values: dict[tuple[int, int], float], labels: tuple[str, str]
    ) -> Iterator[Reading]:
        """As margins where the driver tells them so, else as temperatures."""
        margins = {
            name: values[field, 0] for name, field in _MARGINS.items() if (field, 0) in values
        }
        for name, margin in margins.items():
            yield Reading(metrics.GPU_TEMPERATURE_LIMIT_MARGIN, (*labels, name), margin)
        for name, number in _THRESHOLDS.items() if not margins else ():
            limit = self._gpu.ask("nvmlDeviceGetTemperatureThreshold", number)
            if limit is not None:
                yield Reading(metrics.GPU_TEMPERATURE_LIMIT, (*labels, name), limit)
