"""One GPU: whether it answers, how busy it is, its memory."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.nvml import Gpu
from lockstep_catalogue import gpu as metrics

_PERCENT = 1 / 100


def absent_gpu(gpu: Gpu, state: str) -> Iterator[Reading]:
    """What is served of a GPU that does not answer: that it is down, and why."""
    yield Reading(metrics.GPU_UP, gpu.labels, 0)
    yield Reading(metrics.GPU_STATE_INFO, (*gpu.labels, state), 1)


class Load:
    """Reads what tells most of a GPU first: a GPU without one answer is down."""

    name = "gpu"
    tier = Tier.EVERY_TICK

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def collect(self) -> Iterator[Reading]:
        """That the GPU is up, its load and its memory.

        Raises:
            GpuLostError: the GPU is lost, needs a reset, or answers none of the calls.
        """
        told = [*self._load(), *self._memory()]
        if not told and self._gpu.ask("nvmlDeviceGetTemperature", 0) is None:
            raise self._gpu.silent()
        yield Reading(metrics.GPU_UP, self._gpu.labels, 1)
        yield Reading(metrics.GPU_STATE_INFO, (*self._gpu.labels, "ok"), 1)
        yield from told

    def _load(self) -> Iterator[Reading]:
        rates = self._gpu.ask("nvmlDeviceGetUtilizationRates")
        if rates is not None:
            yield Reading(metrics.GPU_UTILIZATION, self._gpu.labels, rates.gpu * _PERCENT)
            yield Reading(metrics.GPU_MEMORY_COPY, self._gpu.labels, rates.memory * _PERCENT)

    def _memory(self) -> Iterator[Reading]:
        """By the call's second form, which tells reserved apart; the first counts it as used."""
        memory = self._gpu.ask("nvmlDeviceGetMemoryInfo", self._gpu.nvml.nvmlMemory_v2)
        if memory is None:
            memory = self._gpu.ask("nvmlDeviceGetMemoryInfo")
        if memory is None:
            return
        yield Reading(metrics.GPU_MEMORY_TOTAL, self._gpu.labels, memory.total)
        yield Reading(metrics.GPU_MEMORY_USED, self._gpu.labels, memory.used)
        yield Reading(metrics.GPU_MEMORY_FREE, self._gpu.labels, memory.free)
        if hasattr(memory, "reserved"):
            yield Reading(metrics.GPU_MEMORY_RESERVED, self._gpu.labels, memory.reserved)
