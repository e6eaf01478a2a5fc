"""One GPU: minimum, mean and maximum over a window, from the driver's own samples."""

import time
from array import array
from collections.abc import Iterator, Sequence

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.nvml import Gpu, ids
from lockstep_agent.sources.nvml.samples import SampleRing
from lockstep_catalogue import Metric
from lockstep_catalogue import gpu as metrics

# the driver fills these rings by itself: peaks of a tenth of a second show without a fast loop
_RINGS = {
    ids.NVML_TOTAL_POWER_SAMPLES: (metrics.GPU_POWER_WINDOW, 1e-3),
    ids.NVML_PROCESSOR_CLK_SAMPLES: (metrics.GPU_CLOCK_WINDOW, 1e6),
}
_MAX_ADDITIONS = 4096


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
