"""One GPU: its processes, and its instances where it is split (MIG)."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.collectors.gpu.reading import Values, gpu_collector
from lockstep_agent.sources.nvml import Gpu
from lockstep_catalogue import gpu as metrics


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
