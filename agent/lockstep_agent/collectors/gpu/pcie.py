"""One GPU: its PCIe link, the traffic and the errors on it."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.nvml import Fields, Gpu
from lockstep_catalogue import gpu as metrics
from lockstep_catalogue.labels import PCIE_ERROR

_FIRST_ERROR = 173  # fields 173 to 182 are in the order of the label's values
_ERRORS = {name: _FIRST_ERROR + index for index, name in enumerate(PCIE_ERROR.values)}
# counters that wrap, from Hopper on; rate() takes a wrap for a reset
_BYTES = {"transmit": 197, "receive": 198}
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


class GpuPcieBytes:
    """Reads the traffic counters."""

    # not nvmlDeviceGetPcieThroughput: it blocks for 20 ms per direction, 320 ms for eight GPUs
    name = "gpu_pcie_bytes"
    tier = Tier.EVERY_TICK

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._fields = Fields(gpu, ((field, 0) for field in _BYTES.values()))

    def collect(self) -> Iterator[Reading]:
        """Bytes by direction, seen from the GPU."""
        values = self._fields.read()
        for direction, field in _BYTES.items():
            if (field, 0) in values:
                labels = (*self._gpu.labels, direction)
                yield Reading(metrics.GPU_PCIE_BYTES, labels, values[field, 0])


class GpuPcieLink:
    """Reads the link's generation, width and replays."""

    name = "gpu_pcie_link"
    tier = Tier.TEN_SECONDS

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def collect(self) -> Iterator[Reading]:
        """Current generation and lanes, and replays since the driver was loaded."""
        for metric, call in _CURRENT.items():
            value = self._gpu.query(call)
            if value is not None:
                yield Reading(metric, self._gpu.labels, value)


class GpuPcieErrors:
    """Reads the errors on the link by kind."""

    name = "gpu_pcie_errors"
    tier = Tier.TEN_SECONDS

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._fields = Fields(gpu, ((field, 0) for field in _ERRORS.values()))

    def collect(self) -> Iterator[Reading]:
        """Counts since the driver was loaded."""
        values = self._fields.read()
        for error, field in _ERRORS.items():
            if (field, 0) in values:
                yield Reading(metrics.GPU_PCIE_ERRORS, (*self._gpu.labels, error), values[field, 0])


class GpuPcieLimits:
    """Reads the highest generation and width of the link."""

    name = "gpu_pcie_limits"
    tier = Tier.MINUTE

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def collect(self) -> Iterator[Reading]:
        """Maxima of the link, and of the GPU by itself."""
        # both maxima of the generation: a fast GPU in a slower slot is no fault
        for metric, call in _MAXIMA.items():
            value = self._gpu.query(call)
            if value is not None:
                yield Reading(metric, self._gpu.labels, value)
