"""One GPU: the reasons for which its clocks are held back, and for how long they were."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.nvml import Fields, Gpu
from lockstep_catalogue import gpu as metrics

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
# fields in nanoseconds (nvidia-smi prints microseconds); whether they exist depends on the driver,
# not on the chip
_SECONDS = {
    "sw_power_cap": 74,
    "sync_boost": 76,
    "sw_thermal": 269,
    "hw_thermal": 270,
    "hw_power_brake": 271,
}
_ANY_THERMAL = 75  # older drivers have one counter for all thermal reasons
_NANO = 1e-9


class GpuThrottle:
    """Reads the reasons that hold at this moment."""

    name = "gpu_throttle"
    tier = Tier.TEN_SECONDS

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def collect(self) -> Iterator[Reading]:
        """0 or 1 for each reason."""
        # the call with ThrottleReasons goes away in CUDA 14, and older drivers lack the other
        mask = self._gpu.query("nvmlDeviceGetCurrentClocksEventReasons")
        if mask is None:
            mask = self._gpu.query("nvmlDeviceGetCurrentClocksThrottleReasons")
        if mask is None:
            return
        for reason, bit in _BITS.items():
            labels = (*self._gpu.labels, reason)
            yield Reading(metrics.GPU_THROTTLE_ACTIVE, labels, 1 if mask & bit else 0)


class GpuThrottleSeconds:
    """Reads the driver's counters of throttled time, which miss nothing between two polls."""

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
