"""What a collector is, the readings it yields, and the guard that keeps its failure to itself."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from lockstep_catalogue import Kind, Metric

_log = logging.getLogger(__name__)


def _check_labels(metric: Metric, labels: tuple[str, ...]) -> None:
    assert len(labels) == len(metric.labels), (
        f"{metric.name} has the labels {metric.label_names}, not {len(labels)} values"
    )
    for label, value in zip(metric.labels, labels, strict=True):
        assert not label.values or value in label.values, (
            f"{metric.name}: {label.name}={value!r} is none of {label.values}"
        )
        assert value.isprintable(), f"{metric.name}: {label.name}={value!r} cannot be served"


# label values that passed once, by name of the metric: to check them every tick would cost more
# than all driver calls
_passed: dict[str, set[tuple[str, ...]]] = {}
_MOST_PASSED = 4096


@dataclass(frozen=True, slots=True)
class Reading:
    """One sample of a counter or gauge; label values in the order of the metric's labels."""

    metric: Metric
    labels: tuple[str, ...]
    value: float

    def __post_init__(self) -> None:
        passed = _passed.get(self.metric.name)
        if passed is not None and self.labels in passed:
            return
        assert self.metric.kind is not Kind.HISTOGRAM, f"{self.metric.name} is a histogram"
        _check_labels(self.metric, self.labels)
        if passed is None or len(passed) >= _MOST_PASSED:
            passed = _passed[self.metric.name] = set()
        passed.add(self.labels)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exemplar:
    """One observation that stands for its bucket; only OpenMetrics tells it."""

    labels: Mapping[str, str]
    value: float
    wall_seconds: float


@dataclass(frozen=True, slots=True)
class HistogramReading:
    """One histogram: counts by bucket, not cumulative, the last beyond all bounds; sum in units.

    Exemplars, where there are any, are one a bucket, or None.
    """

    metric: Metric
    labels: tuple[str, ...]
    counts: tuple[int, ...]
    sum: float
    exemplars: tuple[Exemplar | None, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.exemplars) in {0, len(self.counts)}, f"{self.metric.name}: exemplars"
        assert len(self.counts) == len(self.metric.buckets) + 1, f"{self.metric.name}: buckets"
        assert self.metric.kind is Kind.HISTOGRAM, f"{self.metric.name} is no histogram"
        _check_labels(self.metric, self.labels)

    @property
    def value(self) -> "HistogramReading":
        """Itself: what is compared and written of it."""
        return self


AnyReading = Reading | HistogramReading
Part = tuple[AnyReading, ...]
"""What one collector told at once: as long as it has nothing new, this very object."""


class Tier(Enum):
    """How often a collector runs, in seconds; EVERY_TICK follows the agent's ``--tick``."""

    EVERY_TICK = 0.0
    TEN_SECONDS = 10.0
    MINUTE = 60.0


class SourceLostError(RuntimeError):
    """What a whole lane reads is gone: all its series go with it, until it answers again.

    Attributes:
        state: why, one of the values of the label ``state`` of a GPU.
    """

    def __init__(self, state: str, text: str) -> None:
        super().__init__(text)
        self.state = state


class Collector(Protocol):
    """One source of readings; its name is the value of the label ``collector``."""

    @property
    def name(self) -> str:
        """Short and the same for every GPU."""
        ...

    @property
    def tier(self) -> Tier:
        """How often it runs; between two runs its last readings are served."""
        ...

    def collect(self) -> Iterable[AnyReading]:
        """The readings of this moment; what is unknown is left out.

        Who has nothing new returns the tuple of the last time: then nothing is rendered anew.
        """
        ...


@dataclass(frozen=True, slots=True)
class Run:
    """How one run of a collector went; no readings when it failed."""

    name: str
    tier: Tier
    readings: Part
    seconds: float
    failed: bool


class Guard:
    """Runs a collector: an error in it costs its own readings of that run and is itself told."""

    def __init__(
        self, collector: Collector, stopwatch: Callable[[], float] = time.perf_counter
    ) -> None:
        self._collector, self._stopwatch = collector, stopwatch
        self.tier = collector.tier
        self._trouble = ""

    def run(self) -> Run:
        """The collector's readings, all or none, and how the run went.

        Raises:
            SourceLostError: it concerns the whole lane.
        """
        began = self._stopwatch()
        trouble = ""
        readings: Part = ()
        try:
            readings = tuple(self._collector.collect())
        except SourceLostError:
            raise
        except Exception as error:  # noqa: BLE001  # one of the two places that may: a collector
            trouble = f"{type(error).__name__}: {error}"
        self._tell(trouble)
        seconds = self._stopwatch() - began
        return Run(self._collector.name, self.tier, readings, seconds, failed=bool(trouble))

    def _tell(self, trouble: str) -> None:
        """Logs when the collector breaks and when it recovers, not once a run."""
        if trouble and not self._trouble:
            _log.error("collector=%s state=failed error=%r", self._collector.name, trouble)
        elif self._trouble and not trouble:
            _log.info("collector=%s state=recovered", self._collector.name)
        self._trouble = trouble
