"""One GPU: the activity of its units since the last tick (GPM, from Hopper on)."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.nvml import Gpu, ids
from lockstep_agent.sources.nvml.gpm import Gpm
from lockstep_catalogue import gpu as metrics

_PERCENT, _MIB = 1e-2, 1 << 20
_SM = ids.NVML_GPM_METRIC_SM_UTIL
# GPM reports percents and MiB per second
_ACTIVITY = {
    ids.NVML_GPM_METRIC_GRAPHICS_UTIL: (metrics.GPU_GRAPHICS_ACTIVE, (), _PERCENT),
    _SM: (metrics.GPU_SM_ACTIVE, (), _PERCENT),
    ids.NVML_GPM_METRIC_SM_OCCUPANCY: (metrics.GPU_SM_OCCUPANCY, (), _PERCENT),
    ids.NVML_GPM_METRIC_ANY_TENSOR_UTIL: (metrics.GPU_TENSOR_ACTIVE, ("any",), _PERCENT),
    ids.NVML_GPM_METRIC_DFMA_TENSOR_UTIL: (metrics.GPU_TENSOR_ACTIVE, ("dfma",), _PERCENT),
    ids.NVML_GPM_METRIC_HMMA_TENSOR_UTIL: (metrics.GPU_TENSOR_ACTIVE, ("hmma",), _PERCENT),
    ids.NVML_GPM_METRIC_IMMA_TENSOR_UTIL: (metrics.GPU_TENSOR_ACTIVE, ("imma",), _PERCENT),
    ids.NVML_GPM_METRIC_DRAM_BW_UTIL: (metrics.GPU_DRAM_ACTIVE, (), _PERCENT),
    ids.NVML_GPM_METRIC_PCIE_TX_PER_SEC: (metrics.GPU_PCIE_RATE, ("transmit",), _MIB),
    ids.NVML_GPM_METRIC_PCIE_RX_PER_SEC: (metrics.GPU_PCIE_RATE, ("receive",), _MIB),
    ids.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC: (metrics.NVLINK_RATE, ("receive",), _MIB),
    ids.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC: (metrics.NVLINK_RATE, ("transmit",), _MIB),
}


class GpuActivity:
    """Reads GPM once a tick: its means cover all the time between two ticks."""

    name = "gpu_activity"
    tier = Tier.EVERY_TICK

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._gpm = Gpm(gpu, _ACTIVITY)

    def collect(self) -> Iterator[Reading]:
        """Means since the last tick."""
        # GPM leaves the profiling counters free: Nsight and CUPTI still work, unlike beside DCGM's
        # profiling (https://github.com/NVIDIA/DCGM/issues/62)
        values, labels = self._gpm.read(), self._gpu.labels
        for number, value in values.items():
            metric, extra_labels, factor = _ACTIVITY[number]
            yield Reading(metric, (*labels, *extra_labels), value * factor)


class MigActivity:
    """Reads the activity of each instance of a split GPU."""

    name = "gpu_mig_activity"
    tier = Tier.EVERY_TICK

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._gpms: dict[str, Gpm] = {}

    def collect(self) -> Iterator[Reading]:
        """Activity of the multiprocessors by instance."""
        instances = self._gpu.instances() if self._gpu.mig_uuids else []
        # kept by name: GPM needs the sample of the last tick to compare with
        previous = self._gpms
        self._gpms = {
            instance.name: previous.get(instance.name)
            or Gpm(self._gpu, (_SM,), instance.gpu_instance)
            for instance in instances
        }
        for name, gpm in self._gpms.items():
            for value in gpm.read().values():
                labels = (*self._gpu.labels, name)
                yield Reading(metrics.GPU_MIG_SM_ACTIVE, labels, value * _PERCENT)
