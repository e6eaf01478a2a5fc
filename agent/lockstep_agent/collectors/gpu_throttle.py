"""One GPU: why its clocks are held back now, and for how long they were."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.nvml import Fields, Gpu
from lockstep_catalogue import gpu_power as metrics

_BITS = {
    "idle": 0x1,
    "app_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
    "display": 0x100,
}
_SECONDS = {
    "sw_power_cap": 74,
    "sync_boost": 76,
    "sw_thermal": 269,
    "hw_thermal": 270,
    "hw_power_brake": 271,
}
_ANY_THERMAL = 75  # what drivers told before they kept the thermal reasons apart
_NANO = 1e-9


class Throttle:
    """Reads which reasons hold at this moment; how long they held no polling has to find out."""

    name = "gpu_throttle"
    tier = Tier.TEN_SECONDS

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def collect(self) -> Iterator[Reading]:
        """0 or 1 for each reason; by the older name of the call where the newer is not there."""
        mask = self._gpu.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if mask is None:
            mask = self._gpu.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        if mask is None:
            return
        for reason, bit in _BITS.items():
            labels = (*self._gpu.labels, reason)
            yield Reading(metrics.GPU_THROTTLE_ACTIVE, labels, 1 if mask & bit else 0)


class ThrottleSeconds:
    """Reads the driver's own counters of time, which no polling misses."""

    name = "gpu_throttle_seconds"
    tier = Tier.TEN_SECONDS

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._fields = Fields(gpu, ((field, 0) for field in (*_SECONDS.values(), _ANY_THERMAL)))

    def collect(self) -> Iterator[Reading]:
        """Seconds by reason."""
        values = self._fields.read()
        for reason, field in _SECONDS.items():
            nanoseconds = values.get((field, 0))
            if nanoseconds is None and reason == "sw_thermal":
                nanoseconds = values.get((_ANY_THERMAL, 0))
            if nanoseconds is not None:
                labels = (*self._gpu.labels, reason)
                yield Reading(metrics.GPU_THROTTLE_SECONDS, labels, nanoseconds * _NANO)
