"""The NVLinks of a GPU and the fabric that they make; by the driver (NVML)."""

from lockstep_catalogue.labels import (
    BER,
    CHECK,
    CLIQUE,
    DIRECTION,
    FABRIC,
    FABRIC_STATE,
    LINK,
    LINK_ERROR,
    LINK_STATE,
    OF_GPU,
)
from lockstep_catalogue.metric import Kind, Metric, Unit

NVLINK_LINKS = Metric(
    name="lockstep_nvlink_links",
    kind=Kind.GAUGE,
    unit=Unit.NONE,
    labels=(*OF_GPU, LINK_STATE),
    help="Number of NVLinks of the GPU that are up, and that are not.",
    source="field 165 or nvmlDeviceGetNvLinkState of each link",
)
NVLINK_SPEED_MIN = Metric(
    name="lockstep_nvlink_speed_min_bytes_per_second",
    kind=Kind.GAUGE,
    unit=Unit.BYTES_PER_SECOND,
    labels=OF_GPU,
    help="Line rate of the slowest active NVLink of the GPU, one direction.",
    source="field 164 of each link",
)
NVLINK_BYTES = Metric(
    name="lockstep_nvlink_bytes_total",
    kind=Kind.COUNTER,
    unit=Unit.BYTES,
    labels=(*OF_GPU, DIRECTION),
    help="Payload over all NVLinks of the GPU.",
    source="fields 138 and 139 x 1024 over all links",
)
NVLINK_RATE = Metric(
    name="lockstep_nvlink_activity_bytes_per_second",
    kind=Kind.GAUGE,
    unit=Unit.BYTES_PER_SECOND,
    labels=(*OF_GPU, DIRECTION),
    help="Traffic over all NVLinks of the GPU since the last tick.",
    source="GPM 60 and 61, DCGM 1011 and 1012",
)
NVLINK_ERRORS = Metric(
    name="lockstep_nvlink_errors_total",
    kind=Kind.COUNTER,
    unit=Unit.NONE,
    labels=(*OF_GPU, LINK_ERROR),
    help="Errors over all NVLinks of the GPU.",
    source="fields 161 to 163, on Blackwell 206 to 221, before Hopper 38, 45, 52, 59, 160",
)
NVLINK_WORST_ERRORS = Metric(
    name="lockstep_nvlink_worst_link_errors_total",
    kind=Kind.COUNTER,
    unit=Unit.NONE,
    labels=(*OF_GPU, LINK),
    help="Errors of the NVLink of the GPU that has most, absent while no link has any.",
    source="the same fields by link",
)
NVLINK_BIT_ERROR = Metric(
    name="lockstep_nvlink_bit_error_ratio",
    kind=Kind.GAUGE,
    unit=Unit.RATIO,
    labels=(*OF_GPU, BER),
    help="Bit error ratio of the worst NVLink of the GPU.",
    source="fields 220, 222, 293",
)
NVLINK_FABRIC_STATE = Metric(
    name="lockstep_nvlink_fabric_state_info",
    kind=Kind.GAUGE,
    unit=Unit.NONE,
    labels=(*OF_GPU, FABRIC_STATE),
    help="How far the GPU has come in joining the NVLink fabric, always 1 on its state.",
    source="nvmlDeviceGetGpuFabricInfoV state",
)
NVLINK_FABRIC_INFO = Metric(
    name="lockstep_nvlink_fabric_info",
    kind=Kind.GAUGE,
    unit=Unit.NONE,
    labels=(*OF_GPU, CLIQUE, FABRIC),
    help="Which NVLink fabric and clique the GPU belongs to, always 1.",
    source="nvmlDeviceGetGpuFabricInfoV",
)
NVLINK_FABRIC_UNHEALTHY = Metric(
    name="lockstep_nvlink_fabric_unhealthy",
    kind=Kind.GAUGE,
    unit=Unit.NONE,
    labels=(*OF_GPU, CHECK),
    help="1 when the fabric's check of the GPU finds fault, 0 when not, absent without an answer.",
    source="nvmlDeviceGetGpuFabricInfoV healthMask",
)

METRICS = (
    NVLINK_LINKS,
    NVLINK_SPEED_MIN,
    NVLINK_BYTES,
    NVLINK_RATE,
    NVLINK_ERRORS,
    NVLINK_WORST_ERRORS,
    NVLINK_BIT_ERROR,
    NVLINK_FABRIC_STATE,
    NVLINK_FABRIC_INFO,
    NVLINK_FABRIC_UNHEALTHY,
)
