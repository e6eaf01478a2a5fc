"""One GPU: its PCIe link, the traffic and the errors on it."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier, present
from lockstep_agent.collectors.gpu.reading import Values, gpu_collector, read_by_label, unscoped
from lockstep_agent.sources.nvml import Gpu, ids
from lockstep_catalogue import gpu as metrics

_ERRORS = {
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
_BYTES = {
    "transmit": ids.NVML_FI_DEV_PCIE_COUNT_TX_BYTES,
    "receive": ids.NVML_FI_DEV_PCIE_COUNT_RX_BYTES,
}
# consumer GPUs fall to generation 1 when idle, H100 and H200 do not. Replays are normal in small
# numbers: a healthy H100 showed 9 since boot
_CURRENT = {
    metrics.GPU_PCIE_GENERATION: "nvmlDeviceGetCurrPcieLinkGeneration",
    metrics.GPU_PCIE_WIDTH: "nvmlDeviceGetCurrPcieLinkWidth",
    metrics.GPU_PCIE_REPLAYS: "nvmlDeviceGetPcieReplayCounter",
}
_MAXIMA = {
    metrics.GPU_PCIE_GENERATION_MAX: "nvmlDeviceGetMaxPcieLinkGeneration",
    metrics.GPU_PCIE_GENERATION_DEVICE_MAX: "nvmlDeviceGetGpuMaxPcieLinkGeneration",
    metrics.GPU_PCIE_WIDTH_MAX: "nvmlDeviceGetMaxPcieLinkWidth",
}


# not nvmlDeviceGetPcieThroughput: it blocks for 20 ms per direction, 320 ms for eight GPUs
@gpu_collector("gpu_pcie_bytes", Tier.EVERY_TICK, unscoped(*_BYTES.values()))
def pcie_bytes(gpu: Gpu, values: Values) -> Iterator[Reading]:
    """Bytes by direction, seen from the GPU."""
    return read_by_label(metrics.GPU_PCIE_BYTES, gpu.labels, _BYTES, values)


@gpu_collector("gpu_pcie_link", Tier.TEN_SECONDS)
def pcie_link(gpu: Gpu, _: Values) -> Iterator[Reading]:
    """Current generation and lanes, and replays since the driver was loaded."""
    for metric, call in _CURRENT.items():
        yield from present(metric, gpu.labels, gpu.query(call))


@gpu_collector("gpu_pcie_errors", Tier.TEN_SECONDS, unscoped(*_ERRORS.values()))
def pcie_errors(gpu: Gpu, values: Values) -> Iterator[Reading]:
    """Errors by kind since the driver was loaded."""
    return read_by_label(metrics.GPU_PCIE_ERRORS, gpu.labels, _ERRORS, values)


@gpu_collector("gpu_pcie_limits", Tier.MINUTE)
def pcie_limits(gpu: Gpu, _: Values) -> Iterator[Reading]:
    """Highest generation and width of the link, and of the GPU by itself."""
    # both maxima of the generation: a fast GPU in a slower slot is not faulty
    for metric, call in _MAXIMA.items():
        yield from present(metric, gpu.labels, gpu.query(call))
