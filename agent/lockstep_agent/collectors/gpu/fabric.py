"""One GPU: whether it has joined the NVLink fabric, and the fabric's health checks."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier, present
from lockstep_agent.collectors.gpu.reading import Values, gpu_collector
from lockstep_agent.sources.nvml import Gpu, ids
from lockstep_catalogue import gpu as metrics

_STATES = {
    ids.NVML_GPU_FABRIC_STATE_NOT_STARTED: "not_started",
    ids.NVML_GPU_FABRIC_STATE_IN_PROGRESS: "in_progress",
    ids.NVML_GPU_FABRIC_STATE_COMPLETED: "completed",
}
_TRUE_FALSE = {1: 1, 2: 0}  # two bits: 0 not supported, 1 true, 2 false
_CHECKS = {
    "degraded_bandwidth": ids.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW,
    "route_recovery": ids.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY,
    "route_unhealthy": ids.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY,
    "access_timeout": ids.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY,
}
# four bits: 0 not supported, 1 none, more are kinds of fault
_CONFIGURATION_SHIFT = ids.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION


@gpu_collector("gpu_fabric", Tier.TEN_SECONDS)
def fabric(gpu: Gpu, _: Values) -> Iterator[Reading]:
    """State, membership and health checks; a GPU without a fabric has no series."""
    # the call without a version (nvmlDeviceGetGpuFabricInfo) goes away in CUDA 14
    call = "nvmlDeviceGetGpuFabricInfoV"
    info = gpu.query_struct(call, "c_nvmlGpuFabricInfo_v3_t")
    # version 3 is refused by older drivers; the health mask is in both
    if info is None:
        info = gpu.query_struct(call, "c_nvmlGpuFabricInfo_v2_t")
    if info is None or info.state not in _STATES:
        return
    is_completed = _STATES[info.state] == "completed"
    # completed only means that the attempt is over; the status says how it ended
    state = "failed" if is_completed and info.status else _STATES[info.state]
    yield Reading(metrics.NVLINK_FABRIC_STATE, (*gpu.labels, state), 1)
    if state == "completed":
        labels = (*gpu.labels, str(info.cliqueId), bytes(info.clusterUuid).hex())
        yield Reading(metrics.NVLINK_FABRIC_INFO, labels, 1)
        yield from _checks(gpu, info.healthMask)


def _checks(gpu: Gpu, mask: int) -> Iterator[Reading]:
    for check, shift in _CHECKS.items():
        is_unhealthy = _TRUE_FALSE.get(mask >> shift & 0x3)
        yield from present(metrics.NVLINK_FABRIC_UNHEALTHY, (*gpu.labels, check), is_unhealthy)
    configuration = mask >> _CONFIGURATION_SHIFT & 0xF
    if configuration:
        labels = (*gpu.labels, "incorrect_configuration")
        yield Reading(metrics.NVLINK_FABRIC_UNHEALTHY, labels, 0 if configuration == 1 else 1)
