"""One GPU: whether it answers, its identity, utilization, memory, processes and MIG instances."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier, present
from lockstep_agent.collectors.gpu.reading import Values, gpu_collector
from lockstep_agent.sources.nvml import Gpu, ids
from lockstep_catalogue import gpu as metrics
from lockstep_records.text.printable import drop_unprintable

_PERCENT = 1 / 100
_MEMORY = {
    metrics.GPU_MEMORY_TOTAL: "total",
    metrics.GPU_MEMORY_USED: "used",
    metrics.GPU_MEMORY_FREE: "free",
    metrics.GPU_MEMORY_RESERVED: "reserved",
}
_ARCHITECTURES = {
    ids.NVML_DEVICE_ARCH_KEPLER: "kepler",
    ids.NVML_DEVICE_ARCH_MAXWELL: "maxwell",
    ids.NVML_DEVICE_ARCH_PASCAL: "pascal",
    ids.NVML_DEVICE_ARCH_VOLTA: "volta",
    ids.NVML_DEVICE_ARCH_TURING: "turing",
    ids.NVML_DEVICE_ARCH_AMPERE: "ampere",
    ids.NVML_DEVICE_ARCH_ADA: "ada",
    ids.NVML_DEVICE_ARCH_HOPPER: "hopper",
    ids.NVML_DEVICE_ARCH_BLACKWELL: "blackwell",
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


@gpu_collector("gpu_identity", Tier.MINUTE)
def identity(gpu: Gpu, _: Values) -> Iterator[Reading]:
    """One info series of what never changes in a GPU's life; an unknown value is an empty label."""
    gpu.ensure_handle()
    family = gpu.query("nvmlDeviceGetArchitecture")
    minor = gpu.query("nvmlDeviceGetMinorNumber")
    values = (
        gpu.model or "",
        _ARCHITECTURES.get(family, ""),
        gpu.address,
        "" if minor is None else str(minor),
        gpu.query("nvmlDeviceGetSerial") or "",
        gpu.query("nvmlDeviceGetVbiosVersion") or "",
    )
    yield Reading(metrics.GPU_INFO, (*gpu.labels, *map(drop_unprintable, values)), 1)


@gpu_collector("gpu_processes", Tier.TEN_SECONDS)
def processes(gpu: Gpu, _: Values) -> Iterator[Reading]:
    """Number of processes and their memory, and one info series for each instance."""
    # the pids are those of the host: in a container it takes the host's pid namespace
    running = gpu.query("nvmlDeviceGetComputeRunningProcesses_v3")
    if running is not None:
        gpu.pids = tuple(process.pid for process in running)
        yield Reading(metrics.GPU_PROCESSES, gpu.labels, len(running))
    bar1 = gpu.query("nvmlDeviceGetBAR1MemoryInfo")
    if bar1 is not None:
        yield Reading(metrics.GPU_BAR1_USED, gpu.labels, bar1.bar1Used)
    modes = gpu.query("nvmlDeviceGetMigMode")
    if modes is None:
        return
    # the current mode: the pending one takes effect with the next reset
    is_split = bool(modes[0])
    yield Reading(metrics.GPU_MIG_ENABLED, gpu.labels, 1 if is_split else 0)
    instances = gpu.instances() if is_split else []
    if running is None:  # some drivers list those of a split GPU by instance only
        gpu.pids = tuple(pid for instance in instances for pid in instance.pids())
    gpu.mig_uuids = tuple(instance.uuid for instance in instances)
    for instance in instances:
        labels = (*gpu.labels, instance.name)
        yield Reading(metrics.GPU_MIG_INFO, (*labels, instance.uuid), 1)
        memory = instance.memory()
        if memory is not None:
            yield Reading(metrics.GPU_MIG_MEMORY_TOTAL, labels, memory.total)
            yield Reading(metrics.GPU_MIG_MEMORY_USED, labels, memory.used)
