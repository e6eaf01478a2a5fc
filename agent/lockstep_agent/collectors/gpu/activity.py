"""One GPU: what its units did since the last tick, and minima, means and maxima over a window."""

import time
from array import array
from collections.abc import Iterator, Sequence

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.nvml import Gpu, ids
from lockstep_agent.sources.nvml.fields import SampleRing
from lockstep_agent.sources.nvml.gpm import Gpm
from lockstep_catalogue import Metric
from lockstep_catalogue import gpu as metrics

# the driver fills these rings by itself: peaks of a tenth of a second show without a fast loop
_RINGS = {
    ids.NVML_TOTAL_POWER_SAMPLES: (metrics.GPU_POWER_WINDOW, 1e-3),
    ids.NVML_PROCESSOR_CLK_SAMPLES: (metrics.GPU_CLOCK_WINDOW, 1e6),
}
_MAX_ADDITIONS = 4096
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


class Window:
    """Keeps the values that are at most so many seconds older than the newest.

    Each addition is summed up into one entry of five arrays: a list of small objects would be out
    of the processor's caches whenever it is read, a tick later.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._times, self._lowest, self._highest = array("d"), array("d"), array("d")
        self._sums, self._counts = array("d"), array("q")

    def add(self, at_seconds: float, values: Sequence[float]) -> None:
        """Adds values that were read together; times rise from call to call."""
        if values:
            self._times.append(at_seconds)
            self._lowest.append(min(values))
            self._highest.append(max(values))
            self._sums.append(sum(values))
            self._counts.append(len(values))
        num_old = max(len(self._times) - _MAX_ADDITIONS, 0)
        while num_old < len(self._times) and self._times[num_old] < at_seconds - self._seconds:
            num_old += 1
        if num_old:
            for column in (self._times, self._lowest, self._highest, self._sums, self._counts):
                del column[:num_old]

    def statistics(self) -> dict[str, float]:
        """Minimum, mean and maximum by the values of the label; none without values."""
        if not self._times:
            return {}
        mean = sum(self._sums) / sum(self._counts)
        return {"min": min(self._lowest), "mean": mean, "max": max(self._highest)}


class GpuWindows:
    """Reads the new samples of each ring once a tick, so that peaks between two scrapes show.

    Args:
        window_seconds: window for minimum, mean and maximum; set it to the scrape interval.
    """

    name = "gpu_window"
    tier = Tier.EVERY_TICK

    def __init__(self, gpu: Gpu, window_seconds: float) -> None:
        self._gpu = gpu
        self._rings = {kind: (SampleRing(gpu, kind), Window(window_seconds)) for kind in _RINGS}

    def collect(self) -> Iterator[Reading]:
        """Three series for each ring that the driver has."""
        for kind, (ring, window) in self._rings.items():
            window.add(time.monotonic(), ring.read())
            metric, factor = _RINGS[kind]
            yield from window_readings(metric, self._gpu.labels, window, factor)


def window_readings(
    metric: Metric, labels: tuple[str, str], window: Window, factor: float = 1.0
) -> Iterator[Reading]:
    """Minimum, mean and maximum of a window; no readings for an empty one.

    Args:
        metric: metric with the label ``statistic``.
        labels: index and UUID of the GPU.
        window: the samples.
        factor: from the unit of the samples to the metric's.
    """
    for name, value in window.statistics().items():
        yield Reading(metric, (*labels, name), value * factor)


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
