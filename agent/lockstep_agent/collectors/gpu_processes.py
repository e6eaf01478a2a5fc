"""One GPU: its processes, and its instances where it is split (MIG)."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.nvml import Gpu
from lockstep_catalogue import gpu as metrics


class GpuProcesses:
    """Reads who shares the GPU: processes, instances and their memory."""

    name = "gpu_tenants"
    tier = Tier.TEN_SECONDS

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def collect(self) -> Iterator[Reading]:
        """Number of processes, and one info series an instance."""
        labels = self._gpu.labels
        processes = self._gpu.ask("nvmlDeviceGetComputeRunningProcesses_v3")
        if processes is not None:
            self._gpu.pids = tuple(process.pid for process in processes)
            yield Reading(metrics.GPU_PROCESSES, labels, len(processes))
        window = self._gpu.ask("nvmlDeviceGetBAR1MemoryInfo")
        if window is not None:
            yield Reading(metrics.GPU_BAR1_USED, labels, window.bar1Used)
        modes = self._gpu.ask("nvmlDeviceGetMigMode")
        if modes is None:
            return
        split = bool(modes[0])
        yield Reading(metrics.GPU_MIG_ENABLED, labels, 1 if split else 0)
        instances = self._gpu.instances() if split else []
        self._gpu.mig_uuids = tuple(instance.uuid for instance in instances)
        for instance in instances:
            told = (*labels, instance.name)
            yield Reading(metrics.GPU_MIG_INFO, (*told, instance.uuid), 1)
            memory = instance.memory()
            if memory is not None:
                yield Reading(metrics.GPU_MIG_MEMORY_TOTAL, told, memory.total)
                yield Reading(metrics.GPU_MIG_MEMORY_USED, told, memory.used)
