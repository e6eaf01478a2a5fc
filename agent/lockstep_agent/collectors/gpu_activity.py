"""One GPU: what its units really did since the last tick (GPM, from Hopper on)."""

import time
from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.collectors.gpu_window import of_window
from lockstep_agent.sources.nvml import Gpu
from lockstep_agent.sources.nvml.gpm import Gpm
from lockstep_agent.window import Window
from lockstep_catalogue import gpu_activity as metrics
from lockstep_catalogue import gpu_pcie, nvlink

_PERCENT, _MIB = 1e-2, 1 << 20
_SM = 2
_ACTIVITY = {
    1: (metrics.GPU_GRAPHICS_ACTIVE, (), _PERCENT),
    _SM: (metrics.GPU_SM_ACTIVE, (), _PERCENT),
    3: (metrics.GPU_SM_OCCUPANCY, (), _PERCENT),
    5: (metrics.GPU_TENSOR_ACTIVE, ("any",), _PERCENT),
    6: (metrics.GPU_TENSOR_ACTIVE, ("dfma",), _PERCENT),
    7: (metrics.GPU_TENSOR_ACTIVE, ("hmma",), _PERCENT),
    9: (metrics.GPU_TENSOR_ACTIVE, ("imma",), _PERCENT),
    10: (metrics.GPU_DRAM_ACTIVE, (), _PERCENT),
    20: (gpu_pcie.GPU_PCIE_RATE, ("transmit",), _MIB),
    21: (gpu_pcie.GPU_PCIE_RATE, ("receive",), _MIB),
    60: (nvlink.NVLINK_RATE, ("receive",), _MIB),
    61: (nvlink.NVLINK_RATE, ("transmit",), _MIB),
}


class Activity:
    """Reads GPM once a tick, so that nothing between two ticks is missed."""

    name = "gpu_activity"
    tier = Tier.EVERY_TICK

    def __init__(self, gpu: Gpu, window_seconds: float) -> None:
        self._gpu = gpu
        self._gpm = Gpm(gpu, _ACTIVITY)
        self._window = Window(window_seconds)

    def collect(self) -> Iterator[Reading]:
        """Means since the last tick; of the multiprocessors over the window too."""
        values, labels = self._gpm.read(), self._gpu.labels
        for number, value in values.items():
            metric, more, factor = _ACTIVITY[number]
            yield Reading(metric, (*labels, *more), value * factor)
        if _SM in values:
            self._window.add(time.monotonic(), (values[_SM],))
            yield from of_window(metrics.GPU_SM_ACTIVE_WINDOW, labels, self._window, _PERCENT)


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
        known = self._gpms
        self._gpms = {
            one.name: known.get(one.name) or Gpm(self._gpu, (_SM,), one.gpu_instance)
            for one in instances
        }
        for name, gpm in self._gpms.items():
            for value in gpm.read().values():
                labels = (*self._gpu.labels, name)
                yield Reading(metrics.GPU_MIG_SM_ACTIVE, labels, value * _PERCENT)
