"""One GPU: its PCIe link, its NVLinks from Volta to Blackwell, and the NVLink fabric."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier, present
from lockstep_agent.collectors.gpu.reading import Values, gpu_collector, read_by_label, unscoped
from lockstep_agent.sources.nvml import ALL_LINKS, Fields, Gpu, ids
from lockstep_catalogue import gpu as metrics

_PCIE_ERRORS = {
    "correctable": ids.NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS,
    "nak_received": ids.NVML_FI_DEV_PCIE_COUNT_NAKS_RECEIVED,
    "receiver": ids.NVML_FI_DEV_PCIE_COUNT_RECEIVER_ERROR,
    "bad_tlp": ids.NVML_FI_DEV_PCIE_COUNT_BAD_TLP,
    "nak_sent": ids.NVML_FI_DEV_PCIE_COUNT_NAKS_SENT,
    "bad_dllp": ids.NVML_FI_DEV_PCIE_COUNT_BAD_DLLP,
    "non_fatal": ids.NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR,
    "fatal": ids.NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR,
    "unsupported_request": ids.NVML_FI_DEV_PCIE_COUNT_UNSUPPORTED_REQ,
    "lcrc": ids.NVML_FI_DEV_PCIE_COUNT_LCRC_ERROR,
}
# counters that wrap, from Hopper on; rate() takes a wrap for a reset
_PCIE_BYTES = {
    "transmit": ids.NVML_FI_DEV_PCIE_COUNT_TX_BYTES,
    "receive": ids.NVML_FI_DEV_PCIE_COUNT_RX_BYTES,
}
# consumer GPUs fall to generation 1 when idle, H100 and H200 do not. Replays are normal in small
# numbers: a healthy H100 showed 9 since boot
_PCIE_CURRENT = {
    metrics.GPU_PCIE_GENERATION: "nvmlDeviceGetCurrPcieLinkGeneration",
    metrics.GPU_PCIE_WIDTH: "nvmlDeviceGetCurrPcieLinkWidth",
    metrics.GPU_PCIE_REPLAYS: "nvmlDeviceGetPcieReplayCounter",
}
_PCIE_MAXIMA = {
    metrics.GPU_PCIE_GENERATION_MAX: "nvmlDeviceGetMaxPcieLinkGeneration",
    metrics.GPU_PCIE_GENERATION_DEVICE_MAX: "nvmlDeviceGetGpuMaxPcieLinkGeneration",
    metrics.GPU_PCIE_WIDTH_MAX: "nvmlDeviceGetMaxPcieLinkWidth",
}
_COUNT, _STATE = ids.NVML_FI_DEV_NVLINK_LINK_COUNT, ids.NVML_FI_DEV_NVLINK_GET_STATE
_SPEED = ids.NVML_FI_DEV_NVLINK_GET_SPEED
_MAX_LINKS = ids.NVML_NVLINK_MAX_LINKS  # 18 are on H100, H200 and B200, 12 on A100
# payload in KiB; with the scope ALL_LINKS one pair of fields serves all links of a GPU
_PAYLOADS = {
    "transmit": ids.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
    "receive": ids.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
}
_KIB = 1024
_MEGA = 1e6
# fields of each link: those of ERROR_DL on Hopper, the others on Blackwell, which lacks the former
_FIELD_BY_KIND = {
    "replay": ids.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
    "recovery": ids.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
    "crc": ids.NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
    "malformed": ids.NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS,
    "overrun": ids.NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS,
    "receive": ids.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS,
    "receive_remote": ids.NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS,
    "receive_general": ids.NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS,
    "local_integrity": ids.NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS,
    "discard": ids.NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS,
    "recovery_failed": ids.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS,
    "effective": ids.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS,
    "symbol": ids.NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS,
}
# in place of ERROR_DL_RECOVERY on Blackwell
_RECOVERIES = ids.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS
# sums over all links, up to Ampere
_TOTALS = {
    "crc_flit": ids.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    "crc_data": ids.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
    "replay": ids.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    "recovery": ids.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
    "ecc": ids.NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL,
}
# Blackwell's bit error ratios, packed as bit_error_ratio unpacks them
_RATIOS = {
    "effective": ids.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER,
    "symbol": ids.NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER,
    "raw": ids.NVML_FI_DEV_NVLINK_COUNT_RAW_BER_V2,
}
_FABRIC_STATES = {
    ids.NVML_GPU_FABRIC_STATE_NOT_STARTED: "not_started",
    ids.NVML_GPU_FABRIC_STATE_IN_PROGRESS: "in_progress",
    ids.NVML_GPU_FABRIC_STATE_COMPLETED: "completed",
}
_TRUE_FALSE = {1: 1, 2: 0}  # two bits: 0 not supported, 1 true, 2 false
_FABRIC_CHECKS = {
    "degraded_bandwidth": ids.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW,
    "route_recovery": ids.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY,
    "route_unhealthy": ids.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY,
    "access_timeout": ids.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY,
}
# four bits: 0 not supported, 1 none, more are kinds of fault
_CONFIGURATION_SHIFT = ids.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION


# not nvmlDeviceGetPcieThroughput: it blocks for 20 ms per direction, 320 ms for eight GPUs
@gpu_collector("gpu_pcie_bytes", Tier.EVERY_TICK, unscoped(*_PCIE_BYTES.values()))
def pcie_bytes(gpu: Gpu, values: Values) -> Iterator[Reading]:
    """Bytes by direction, seen from the GPU."""
    return read_by_label(metrics.GPU_PCIE_BYTES, gpu.labels, _PCIE_BYTES, values)


@gpu_collector("gpu_pcie_link", Tier.TEN_SECONDS)
def pcie_link(gpu: Gpu, _: Values) -> Iterator[Reading]:
    """Current generation and lanes, and replays since the driver was loaded."""
    for metric, call in _PCIE_CURRENT.items():
        yield from present(metric, gpu.labels, gpu.query(call))


@gpu_collector("gpu_pcie_errors", Tier.TEN_SECONDS, unscoped(*_PCIE_ERRORS.values()))
def pcie_errors(gpu: Gpu, values: Values) -> Iterator[Reading]:
    """Errors by kind since the driver was loaded."""
    return read_by_label(metrics.GPU_PCIE_ERRORS, gpu.labels, _PCIE_ERRORS, values)


@gpu_collector("gpu_pcie_limits", Tier.MINUTE)
def pcie_limits(gpu: Gpu, _: Values) -> Iterator[Reading]:
    """Highest generation and width of the link, and of the GPU by itself."""
    # both maxima of the generation: a fast GPU in a slower slot is not faulty
    for metric, call in _PCIE_MAXIMA.items():
        yield from present(metric, gpu.labels, gpu.query(call))


@gpu_collector("nvlink_bytes", Tier.EVERY_TICK, ((each, ALL_LINKS) for each in _PAYLOADS.values()))
def nvlink_bytes(gpu: Gpu, values: Values) -> Iterator[Reading]:
    """Payload bytes by direction, summed over all links."""
    return read_by_label(
        metrics.NVLINK_BYTES, gpu.labels, _PAYLOADS, values, factor=_KIB, scope=ALL_LINKS
    )


def _each_link(fields: tuple[int, ...], links: int) -> Iterator[tuple[int, int]]:
    return ((field, link) for field in fields for link in range(links))


class Nvlinks:
    """Reads each link; reports sums and the worst link, so that series stay few."""

    name = "nvlink"
    tier = Tier.TEN_SECONDS

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._count = Fields(gpu, ((_COUNT, 0), *((field, 0) for field in _TOTALS.values())))
        self._links: Fields | None = None
        self._num_links = 0

    def collect(self) -> Iterator[Reading]:
        """Links up and down, errors by kind, and the link with the most errors."""
        totals = self._count.read()
        num_links = min(int(totals.get((_COUNT, 0), 0)), _MAX_LINKS)
        if not num_links:
            return
        if self._links is None or num_links != self._num_links:
            self._num_links = num_links
            fields = (_STATE, *_FIELD_BY_KIND.values(), _RECOVERIES)
            self._links = Fields(self._gpu, _each_link(fields, num_links))
        values = self._links.read()
        yield from self._states(values)
        yield from self._errors(totals, values)

    def _states(self, values: dict[tuple[int, int], float]) -> Iterator[Reading]:
        states = [self._is_up(link, values) for link in range(self._num_links)]
        counts = {"active": states.count(True), "inactive": states.count(False)}
        for state, count in counts.items() if any(counts.values()) else ():
            yield Reading(metrics.NVLINK_LINKS, (*self._gpu.labels, state), count)

    def _is_up(self, link: int, values: dict[tuple[int, int], float]) -> bool | None:
        state = values.get((_STATE, link))
        if state is None:
            state = self._gpu.query("nvmlDeviceGetNvLinkState", link)
        return None if state is None else bool(state)

    def _errors(
        self, totals: dict[tuple[int, int], float], values: dict[tuple[int, int], float]
    ) -> Iterator[Reading]:
        by_kind = {
            kind: totals[field, 0] for kind, field in _TOTALS.items() if (field, 0) in totals
        }
        by_link = dict.fromkeys(range(self._num_links), 0.0)
        kinds = {field: kind for kind, field in _FIELD_BY_KIND.items()}
        if not any((_FIELD_BY_KIND["recovery"], link) in values for link in by_link):
            kinds[_RECOVERIES] = "recovery"
        for (field, link), count in values.items():
            if kind := kinds.get(field):
                by_kind[kind] = by_kind.get(kind, 0.0) + count
                by_link[link] += count
        for kind, count in by_kind.items():
            yield Reading(metrics.NVLINK_ERRORS, (*self._gpu.labels, kind), count)
        worst = max(by_link, key=by_link.__getitem__)
        if by_link[worst]:
            labels = (*self._gpu.labels, str(worst))
            yield Reading(metrics.NVLINK_WORST_ERRORS, labels, by_link[worst])


def bit_error_ratio(packed: int) -> float:
    """The bit error ratio in NVML's packed form: exponent in bits 0-7, mantissa in bits 8-11."""
    return float((packed >> 8 & 0xF) * 10.0 ** -(packed & 0xFF))


@gpu_collector("nvlink_quality", Tier.MINUTE, _each_link((_SPEED, *_RATIOS.values()), _MAX_LINKS))
def nvlink_quality(gpu: Gpu, values: Values) -> Iterator[Reading]:
    """Speed of the slowest active link, and the highest bit error ratios."""
    speeds = [value for (field, _), value in values.items() if field == _SPEED and value]
    yield from present(metrics.NVLINK_SPEED_MIN, gpu.labels, min(speeds, default=None), _MEGA)
    for kind, ratio_field in _RATIOS.items():
        packed = [int(value) for (field, _), value in values.items() if field == ratio_field]
        worst = max(map(bit_error_ratio, packed), default=None)
        yield from present(metrics.NVLINK_BIT_ERROR, (*gpu.labels, kind), worst)


@gpu_collector("gpu_fabric", Tier.TEN_SECONDS)
def fabric(gpu: Gpu, _: Values) -> Iterator[Reading]:
    """State, membership and health checks; a GPU without a fabric has no series."""
    # the call without a version (nvmlDeviceGetGpuFabricInfo) goes away in CUDA 14
    call = "nvmlDeviceGetGpuFabricInfoV"
    info = gpu.query_struct(call, "c_nvmlGpuFabricInfo_v3_t")
    # version 3 is refused by older drivers; the health mask is in both
    if info is None:
        info = gpu.query_struct(call, "c_nvmlGpuFabricInfo_v2_t")
    if info is None or info.state not in _FABRIC_STATES:
        return
    is_completed = _FABRIC_STATES[info.state] == "completed"
    # completed only means that the attempt is over; the status says how it ended
    state = "failed" if is_completed and info.status else _FABRIC_STATES[info.state]
    yield Reading(metrics.NVLINK_FABRIC_STATE, (*gpu.labels, state), 1)
    if state == "completed":
        labels = (*gpu.labels, str(info.cliqueId), bytes(info.clusterUuid).hex())
        yield Reading(metrics.NVLINK_FABRIC_INFO, labels, 1)
        yield from _fabric_checks(gpu, info.healthMask)


def _fabric_checks(gpu: Gpu, mask: int) -> Iterator[Reading]:
    for check, shift in _FABRIC_CHECKS.items():
        is_unhealthy = _TRUE_FALSE.get(mask >> shift & 0x3)
        yield from present(metrics.NVLINK_FABRIC_UNHEALTHY, (*gpu.labels, check), is_unhealthy)
    configuration = mask >> _CONFIGURATION_SHIFT & 0xF
    if configuration:
        labels = (*gpu.labels, "incorrect_configuration")
        yield Reading(metrics.NVLINK_FABRIC_UNHEALTHY, labels, 0 if configuration == 1 else 1)
