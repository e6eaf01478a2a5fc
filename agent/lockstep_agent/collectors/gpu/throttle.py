"""One GPU: the reasons for which its clocks are held back, and for how long they were."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier, present
from lockstep_agent.collectors.gpu.reading import Values, gpu_collector, unscoped
from lockstep_agent.sources.nvml import Gpu
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


@gpu_collector("gpu_throttle", Tier.TEN_SECONDS)
def throttle_reasons(gpu: Gpu, _: Values) -> Iterator[Reading]:
    """0 or 1 for each reason, whether it holds at this moment."""
    # the call with ThrottleReasons goes away in CUDA 14, and older drivers lack the other
    mask = gpu.query("nvmlDeviceGetCurrentClocksEventReasons")
    if mask is None:
        mask = gpu.query("nvmlDeviceGetCurrentClocksThrottleReasons")
    for reason, bit in _BITS.items() if mask is not None else ():
        labels = (*gpu.labels, reason)
        yield Reading(metrics.GPU_THROTTLE_ACTIVE, labels, 1 if mask & bit else 0)


@gpu_collector("gpu_throttle_seconds", Tier.TEN_SECONDS, unscoped(*_SECONDS.values(), _ANY_THERMAL))
def throttle_seconds(gpu: Gpu, values: Values) -> Iterator[Reading]:
    """Seconds by reason: the driver's counters miss nothing between two polls."""
    any_thermal = values.get((_ANY_THERMAL, 0))
    for reason, field in _SECONDS.items():
        nanoseconds = values.get((field, 0), any_thermal if reason == "sw_thermal" else None)
        labels = (*gpu.labels, reason)
        yield from present(metrics.GPU_THROTTLE_SECONDS, labels, nanoseconds, _NANO)
