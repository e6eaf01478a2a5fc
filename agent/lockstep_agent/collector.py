"""Collectors by name, the readings they yield, and the guard that contains their failures."""

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from lockstep_catalogue import Kind, Metric

COLLECTORS = (
    *("gpu", "gpu_activity", "gpu_allocation", "gpu_events", "gpu_fabric", "gpu_fault_locations"),
    *("gpu_faults", "gpu_identity", "gpu_lifetime_faults", "gpu_limits", "gpu_mig_activity"),
    *("gpu_pcie_bytes", "gpu_pcie_errors", "gpu_pcie_limits", "gpu_pcie_link", "gpu_power"),
    *("gpu_processes", "gpu_throttle", "gpu_throttle_seconds", "gpu_window"),
    *("nvlink", "nvlink_bytes", "nvlink_quality", "driver", "dcgm", "dcgm_exporter"),
    *("net", "ethernet", "infiniband", "infiniband_errors", "port_health", "pcie", "affinity"),
    *("ranks", "hangs", "bus", "newest_steps", "ras", "inspector", "job_host", "host", "storage"),
    *("kernel_log", "agent_info", "node_events", "delivery", "archive"),
)
_log = logging.getLogger(__name__)


_MAX_LABEL_CHARACTERS = 256  # the longest text of a rank page has 128 bytes
_LARGEST_COUNT = 1 << 63


def _check_labels(metric: Metric, labels: tuple[str, ...]) -> None:
    """Checks what a scrape cannot hold; a page may have supplied it, so no assertion will do.

    Raises:
        ValueError: the text names the metric and the label.
    """
    assert len(labels) == len(metric.labels), (
        f"{metric.name} has the labels {metric.label_names}, not {len(labels)} values"
    )
    for label, value in zip(metric.labels, labels, strict=True):
        if label.values and value not in label.values:
            raise ValueError(f"{metric.name}: {label.name}={value!r:.80} is none of {label.values}")
        if not value.isprintable() or len(value) > _MAX_LABEL_CHARACTERS:
            raise ValueError(f"{metric.name}: {label.name}={value!r:.80} cannot be served")


# Label values that were checked once, by name of the metric: to check them every tick would cost
# more than all driver calls.
_valid_labels: dict[str, set[tuple[str, ...]]] = {}
_MAX_VALID_LABELS = 4096


@dataclass(frozen=True, slots=True)
class Reading:
    """One sample of a counter or gauge; label values in the order of the metric's labels."""

    metric: Metric
    labels: tuple[str, ...]
    value: float

    def __post_init__(self) -> None:
        valid = _valid_labels.get(self.metric.name)
        if valid is not None and self.labels in valid:
            return
        assert self.metric.kind is not Kind.HISTOGRAM, f"{self.metric.name} is a histogram"
        _check_labels(self.metric, self.labels)
        if valid is None or len(valid) >= _MAX_VALID_LABELS:
            valid = _valid_labels[self.metric.name] = set()
        valid.add(self.labels)


def present(
    metric: Metric, labels: tuple[str, ...], value: float | None, factor: float = 1
) -> Iterator[Reading]:
    """A reading, or none of a value that is not known."""
    if value is not None:
        yield Reading(metric, labels, value * factor)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exemplar:
    """One observation that represents its bucket; only the OpenMetrics format has it."""

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
        assert self.metric.kind is Kind.HISTOGRAM, f"{self.metric.name} is not a histogram"
        _check_labels(self.metric, self.labels)

    @property
    def value(self) -> "HistogramReading":
        """The reading itself, so that a renderer compares and writes both kinds alike."""
        return self


AnyReading = Reading | HistogramReading


def is_servable(reading: AnyReading) -> bool:
    """Whether all numbers of a reading are finite, and those of a counter not negative.

    A whole number of a counter is at most 2^63: no driver and no rank counts further.
    """
    try:
        if isinstance(reading, HistogramReading):
            return _is_count(reading.sum) and all(map(_is_count, reading.counts))
        if reading.metric.kind is Kind.COUNTER:
            return _is_count(reading.value)
        return math.isfinite(reading.value)
    except (TypeError, OverflowError):  # None where a page lacks a value, or hundreds of digits
        return False


def _is_count(value: float) -> bool:
    return 0 <= value <= _LARGEST_COUNT or (isinstance(value, float) and 0 < value < math.inf)


Part = tuple[AnyReading, ...]
"""Readings of one run of a collector; the same object again as long as nothing has changed."""


class Tier(Enum):
    """How often a collector runs, in seconds; EVERY_TICK follows the agent's ``--tick``."""

    EVERY_TICK = 0.0
    TEN_SECONDS = 10.0
    MINUTE = 60.0


class SourceLostError(RuntimeError):
    """The source of a whole worker is gone; all its series are withheld until it answers again.

    Attributes:
        state: reason, one of the values of the label ``state`` of a GPU.
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

        A collector without news returns the tuple of its last run: then nothing is rendered anew.
        """
        ...


@dataclass(frozen=True, slots=True)
class Run:
    """How one run of a collector went; failed also where a reading could not be served."""

    name: str
    tier: Tier
    readings: Part
    seconds: float
    failed: bool


class Guard:
    """Runs a collector; an error costs the readings of that run, and is counted and logged."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self.name, self.tier = collector.name, collector.tier
        self._last_error = ""

    def run(self) -> Run:
        """The collector's readings, but for those that cannot be served, and how the run went.

        Raises:
            SourceLostError: it concerns the whole worker.
        """
        start = time.perf_counter()
        failure = ""
        readings: Part = ()
        try:
            readings = tuple(self._collector.collect())
            if not all(map(is_servable, readings)):
                bad = next(each for each in readings if not is_servable(each))
                readings = tuple(filter(is_servable, readings))
                failure = f"{bad.metric.name}{bad.labels} is not a number that can be served"
        except SourceLostError:
            raise
        except Exception as error:  # noqa: BLE001  # a collector's failure costs its own readings
            failure = f"{type(error).__name__}: {error}"
        self._log_change(failure)
        seconds = time.perf_counter() - start
        return Run(self._collector.name, self.tier, readings, seconds, failed=bool(failure))

    def _log_change(self, failure: str) -> None:
        """Logs when the collector breaks and when it recovers, not once a run."""
        if failure and not self._last_error:
            _log.error("collector=%s state=failed error=%r", self._collector.name, failure)
        elif self._last_error and not failure:
            _log.info("collector=%s state=recovered", self._collector.name)
        self._last_error = failure
