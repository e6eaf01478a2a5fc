"""Metrics of a GPU's NVLinks and of their fabric; by the driver (NVML)."""

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
from lockstep_catalogue.metric import Metric

# 18 on H100, H200 and B200, 12 on A100.
NVLINK_LINKS = Metric(
    name="lockstep_nvlink_links",
    labels=(*OF_GPU, LINK_STATE),
    help="Number of NVLinks of the GPU by state.",
    source="field 165 or nvmlDeviceGetNvLinkState of each link",
)
# 26.562 GB/s per link of an H100 or H200, 53.125 GB/s of a GB200.
NVLINK_SPEED_MIN = Metric(
    name="lockstep_nvlink_speed_min_bytes_per_second",
    labels=OF_GPU,
    help="Line rate of the slowest active NVLink of the GPU, one direction.",
    source="field 164 of each link",
)
# Scope 0xffffffff sums over the links, so that one pair of fields is read per GPU.
NVLINK_BYTES = Metric(
    name="lockstep_nvlink_bytes_total",
    labels=(*OF_GPU, DIRECTION),
    help="Payload over all NVLinks of the GPU.",
    source="fields 138 and 139 x 1024 over all links",
)
NVLINK_RATE = Metric(
    name="lockstep_nvlink_activity_bytes_per_second",
    labels=(*OF_GPU, DIRECTION),
    help="Traffic over all NVLinks of the GPU since the last tick.",
    source="GPM 60 and 61, DCGM 1011 and 1012",
)
# Fields 161 to 163 are not supported on Blackwell.
NVLINK_ERRORS = Metric(
    name="lockstep_nvlink_errors_total",
    labels=(*OF_GPU, LINK_ERROR),
    help="Errors over all NVLinks of the GPU.",
    source="fields 161 to 163, on Blackwell 206 to 221, before Hopper 38, 45, 52, 59, 160",
)
# All links would be 864 series a node; the worst one names the cable.
NVLINK_WORST_ERRORS = Metric(
    name="lockstep_nvlink_worst_link_errors_total",
    labels=(*OF_GPU, LINK),
    help="Errors of the GPU's NVLink that has most; absent while no link has any.",
    source="the same fields by link",
)
# The driver packs mantissa and exponent into one integer.
NVLINK_BIT_ERROR = Metric(
    name="lockstep_nvlink_bit_error_ratio",
    labels=(*OF_GPU, BER),
    help="Bit error ratio of the worst NVLink of the GPU.",
    source="fields 220, 222, 293",
)
NVLINK_FABRIC_STATE = Metric(
    name="lockstep_nvlink_fabric_state_info",
    labels=(*OF_GPU, FABRIC_STATE),
    help="Progress of the GPU in joining the NVLink fabric, always 1 on the present state.",
    source="nvmlDeviceGetGpuFabricInfoV state",
)
NVLINK_FABRIC_INFO = Metric(
    name="lockstep_nvlink_fabric_info",
    labels=(*OF_GPU, CLIQUE, FABRIC),
    help="NVLink fabric and clique of the GPU, always 1.",
    source="nvmlDeviceGetGpuFabricInfoV",
)
# The health mask says something on NVL72; an H100 has no summary.
NVLINK_FABRIC_UNHEALTHY = Metric(
    name="lockstep_nvlink_fabric_unhealthy",
    labels=(*OF_GPU, CHECK),
    help="1 when the fabric's check of the GPU fails, 0 when it passes; absent without an answer.",
    source="nvmlDeviceGetGpuFabricInfoV healthMask",
)
