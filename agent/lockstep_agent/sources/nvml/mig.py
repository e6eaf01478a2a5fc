"""The MIG instances of a split GPU."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MigInstance:
    """One MIG device.

    Attributes:
        gpu_instance: number of the GPU instance that it belongs to.
        name: GPU instance, slash, compute instance.
    """

    nvml: Any
    handle: Any
    gpu_instance: int
    name: str
    uuid: str

    def memory(self) -> Any:
        """Memory in bytes, as ``total`` and ``used``; None without an answer."""
        # only the call's first form: the second (MemoryInfo_v2) has no data on MIG handles
        try:
            return self.nvml.nvmlDeviceGetMemoryInfo(self.handle)
        except self.nvml.NVMLError:
            return None

    def pids(self) -> tuple[int, ...]:
        """Processes that compute on it; empty without an answer."""
        try:
            processes = self.nvml.nvmlDeviceGetComputeRunningProcesses_v3(self.handle)
        except self.nvml.NVMLError:
            return ()
        return tuple(process.pid for process in processes)


def find_instance(nvml: Any, gpu: Any, index: int) -> MigInstance | None:
    """The instance at an index of a GPU's handle; None for an empty slot."""
    try:
        handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        instance = int(nvml.nvmlDeviceGetGpuInstanceId(handle))
        name = f"{instance}/{int(nvml.nvmlDeviceGetComputeInstanceId(handle))}"
        return MigInstance(nvml, handle, instance, name, str(nvml.nvmlDeviceGetUUID(handle)))
    except nvml.NVMLError:
        return None
