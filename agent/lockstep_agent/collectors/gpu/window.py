"""One GPU: minimum, mean and maximum over a window, from the driver's own samples."""

import time
from collections.abc import Callable, Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.collectors.gpu.recent_values import Window
from lockstep_agent.sources.nvml import Gpu
from lockstep_agent.sources.nvml.samples import SampleRing
from lockstep_catalogue import Metric
from lockstep_catalogue import gpu as metrics

# the driver fills these rings by itself: peaks of a tenth of a second show without a fast loop
_POWER, _UTILIZATION, _PROCESSOR_CLOCK = 0, 1, 5
_RINGS = {
    _POWER: (metrics.GPU_POWER_WINDOW, 1e-3),
    _UTILIZATION: (metrics.GPU_UTILIZATION_WINDOW, 1e-2),
    _PROCESSOR_CLOCK: (metrics.GPU_CLOCK_WINDOW, 1e6),
}


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
    statistics: dict[str, Callable[[], float]] = {
        "min": window.lowest,
        "mean": window.mean,
        "max": window.highest,
    }
    for name, statistic in statistics.items() if not window.is_empty else ():
        yield Reading(metric, (*labels, name), statistic() * factor)
