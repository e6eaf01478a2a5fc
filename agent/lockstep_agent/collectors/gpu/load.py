"""One GPU: whether it answers, its utilization and its memory."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.nvml import Gpu
from lockstep_catalogue import gpu as metrics

_PERCENT = 1 / 100


def absent_gpu(gpu: Gpu, state: str) -> Iterator[Reading]:
    """The readings of a GPU that does not answer: that it is down, and its state.

    Args:
        gpu: the GPU.
        state: value of the label ``state``.
    """
    yield Reading(metrics.GPU_UP, gpu.labels, 0)
    yield Reading(metrics.GPU_STATE_INFO, (*gpu.labels, state), 1)


class GpuLoad:
    """Reads what nearly every GPU supports: a GPU that answers none of it is down."""

    name = "gpu"
    tier = Tier.EVERY_TICK

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def collect(self) -> Iterator[Reading]:
        """That the GPU is up, its utilization and its memory.

        Raises:
            GpuLostError: the GPU is lost, needs a reset, or answers none of the calls.
        """
        readings = [*self._utilization(), *self._memory()]
        # a split GPU has no utilization, but every GPU has a temperature
        if not readings and self._gpu.query("nvmlDeviceGetTemperature", 0) is None:
            raise self._gpu.drop_silent_handle()
        yield Reading(metrics.GPU_UP, self._gpu.labels, 1)
        yield Reading(metrics.GPU_STATE_INFO, (*self._gpu.labels, "ok"), 1)
        yield from readings

    def _utilization(self) -> Iterator[Reading]:
        percents = self._gpu.query("nvmlDeviceGetUtilizationRates")
        if percents is not None:
            yield Reading(metrics.GPU_UTILIZATION, self._gpu.labels, percents.gpu * _PERCENT)
            yield Reading(metrics.GPU_MEMORY_COPY, self._gpu.labels, percents.memory * _PERCENT)

    def _memory(self) -> Iterator[Reading]:
        # the call's first form counts the driver's reserved memory as used, the second apart
        memory = self._gpu.query("nvmlDeviceGetMemoryInfo", self._gpu.nvml.nvmlMemory_v2)
        if memory is None:
            memory = self._gpu.query("nvmlDeviceGetMemoryInfo")
        if memory is None:
            return
        yield Reading(metrics.GPU_MEMORY_TOTAL, self._gpu.labels, memory.total)
        yield Reading(metrics.GPU_MEMORY_USED, self._gpu.labels, memory.used)
        yield Reading(metrics.GPU_MEMORY_FREE, self._gpu.labels, memory.free)
        if hasattr(memory, "reserved"):
            yield Reading(metrics.GPU_MEMORY_RESERVED, self._gpu.labels, memory.reserved)
