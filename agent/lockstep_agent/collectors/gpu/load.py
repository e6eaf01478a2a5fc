"""One GPU: whether it answers, its utilization and its memory."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier, present
from lockstep_agent.collectors.gpu.reading import Values, gpu_collector
from lockstep_agent.sources.nvml import Gpu, ids
from lockstep_catalogue import gpu as metrics

_PERCENT = 1 / 100
_MEMORY = {
    metrics.GPU_MEMORY_TOTAL: "total",
    metrics.GPU_MEMORY_USED: "used",
    metrics.GPU_MEMORY_FREE: "free",
    metrics.GPU_MEMORY_RESERVED: "reserved",
}


def absent_gpu(gpu: Gpu, state: str) -> Iterator[Reading]:
    """The readings of a GPU that does not answer: that it is down, and its state."""
    yield Reading(metrics.GPU_UP, gpu.labels, 0)
    yield Reading(metrics.GPU_STATE_INFO, (*gpu.labels, state), 1)


@gpu_collector("gpu", Tier.EVERY_TICK)
def load(gpu: Gpu, _: Values) -> Iterator[Reading]:
    """That the GPU is up, its utilization and its memory, which nearly every GPU supports.

    Raises:
        GpuLostError: the GPU is lost, needs a reset, or answers none of the calls.
    """
    readings = [*_utilization(gpu), *_memory(gpu)]
    # a split GPU has no utilization, but every GPU has a temperature
    if not readings and gpu.query("nvmlDeviceGetTemperature", ids.NVML_TEMPERATURE_GPU) is None:
        raise gpu.drop_silent_handle()
    yield Reading(metrics.GPU_UP, gpu.labels, 1)
    yield Reading(metrics.GPU_STATE_INFO, (*gpu.labels, "ok"), 1)
    yield from readings


def _utilization(gpu: Gpu) -> Iterator[Reading]:
    percents = gpu.query("nvmlDeviceGetUtilizationRates")
    if percents is not None:
        yield Reading(metrics.GPU_UTILIZATION, gpu.labels, percents.gpu * _PERCENT)
        yield Reading(metrics.GPU_MEMORY_COPY, gpu.labels, percents.memory * _PERCENT)


def _memory(gpu: Gpu) -> Iterator[Reading]:
    # the call's first form counts the driver's reserved memory as used, the second apart
    memory = gpu.query("nvmlDeviceGetMemoryInfo", gpu.nvml.nvmlMemory_v2)
    if memory is None:
        memory = gpu.query("nvmlDeviceGetMemoryInfo")
    for metric, field in _MEMORY.items() if memory is not None else ():
        yield from present(metric, gpu.labels, getattr(memory, field, None))
