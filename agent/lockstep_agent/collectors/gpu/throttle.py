"""One GPU: the reasons for which its clocks are held back, and for how long they were."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier, present
from lockstep_agent.collectors.gpu.reading import Values, gpu_collector, unscoped
from lockstep_agent.sources.nvml import Gpu, ids
from lockstep_catalogue import gpu as metrics

_BITS = {
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
_SECONDS = {
    "sw_power_cap": ids.NVML_FI_DEV_PERF_POLICY_POWER,
    "sync_boost": ids.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST,
    "sw_thermal": ids.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
    "hw_thermal": ids.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
    "hw_power_brake": ids.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
}
# older drivers have one counter for all thermal reasons
_ANY_THERMAL = ids.NVML_FI_DEV_PERF_POLICY_THERMAL
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
