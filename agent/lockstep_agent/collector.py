"""What a collector is, the readings it yields, and the guard that keeps its failure to itself."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from lockstep_catalogue import Kind, Metric, health

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


@dataclass(frozen=True, slots=True)
class Reading:
    """One sample of a counter or gauge; label values in the order of the metric's labels."""

    metric: Metric
    labels: tuple[str, ...]
    value: float

    def __post_init__(self) -> None:
        assert self.metric.kind is not Kind.HISTOGRAM, f"{self.metric.name} is a histogram"
        _check_labels(self.metric, self.labels)


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


AnyReading = Reading | HistogramReading


class Collector(Protocol):
    """One source of readings; its name is the value of the label ``collector``."""

    name: str

    def collect(self) -> Iterable[AnyReading]:
        """The readings of this moment; what is unknown is left out."""
        ...


class Guard:
    """Runs a collector: an error in it costs its own readings of that run and is itself counted."""

    def __init__(
        self, collector: Collector, stopwatch: Callable[[], float] = time.perf_counter
    ) -> None:
        self._collector, self._stopwatch = collector, stopwatch
        self._failures = 0
        self._trouble = ""

    def run(self) -> list[AnyReading]:
        """The collector's readings, all or none, and those of the run itself."""
        began = self._stopwatch()
        trouble = ""
        readings: list[AnyReading] = []
        try:
            readings.extend(self._collector.collect())
        except Exception as error:  # noqa: BLE001  # one of the two places that may: a collector
            readings.clear()
            self._failures += 1
            trouble = f"{type(error).__name__}: {error}"
        self._tell(trouble)
        readings.extend(self._of_the_run(self._stopwatch() - began))
        return readings

    def _tell(self, trouble: str) -> None:
        """Logs when the collector breaks and when it recovers, not once a run."""
        if trouble and not self._trouble:
            _log.error("collector=%s state=failed error=%r", self._collector.name, trouble)
        elif self._trouble and not trouble:
            _log.info("collector=%s state=recovered", self._collector.name)
        self._trouble = trouble

    def _of_the_run(self, seconds: float) -> Iterator[Reading]:
        labels = (self._collector.name,)
        yield Reading(health.COLLECTOR_SUCCESS, labels, 0.0 if self._trouble else 1.0)
        yield Reading(health.COLLECTOR_DURATION, labels, seconds)
        yield Reading(health.COLLECTOR_FAILURES, labels, self._failures)
