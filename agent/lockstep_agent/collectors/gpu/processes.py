"""One GPU: its processes, and its instances where it is split (MIG)."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.nvml import Gpu
from lockstep_catalogue import gpu as metrics


class GpuProcesses:
    """Reads the processes on the GPU, its instances and their memory."""

    name = "gpu_tenants"
    tier = Tier.TEN_SECONDS

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def collect(self) -> Iterator[Reading]:
        """Number of processes, and one info series for each instance."""
        labels = self._gpu.labels
        # the pids are those of the host: in a container it takes the host's pid namespace
        processes = self._gpu.query("nvmlDeviceGetComputeRunningProcesses_v3")
        if processes is not None:
            self._gpu.pids = tuple(process.pid for process in processes)
            yield Reading(metrics.GPU_PROCESSES, labels, len(processes))
        bar1 = self._gpu.query("nvmlDeviceGetBAR1MemoryInfo")
        if bar1 is not None:
            yield Reading(metrics.GPU_BAR1_USED, labels, bar1.bar1Used)
        modes = self._gpu.query("nvmlDeviceGetMigMode")
        if modes is None:
            return
        # the current mode: the pending one takes effect with the next reset
        is_split = bool(modes[0])
        yield Reading(metrics.GPU_MIG_ENABLED, labels, 1 if is_split else 0)
        instances = self._gpu.instances() if is_split else []
        if processes is None:  # some drivers list those of a split GPU by instance only
            self._gpu.pids = tuple(pid for instance in instances for pid in instance.pids())
        self._gpu.mig_uuids = tuple(instance.uuid for instance in instances)
        for instance in instances:
            instance_labels = (*labels, instance.name)
            yield Reading(metrics.GPU_MIG_INFO, (*instance_labels, instance.uuid), 1)
            memory = instance.memory()
            if memory is not None:
                yield Reading(metrics.GPU_MIG_MEMORY_TOTAL, instance_labels, memory.total)
                yield Reading(metrics.GPU_MIG_MEMORY_USED, instance_labels, memory.used)
