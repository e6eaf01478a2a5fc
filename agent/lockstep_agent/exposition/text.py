"""From readings to the bytes of a scrape, byte for byte what prometheus_client would write.

The library takes 5 us a series and format, which alone would be more than one percent of a core.
The tests compare the two.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain

from lockstep_agent.collector import AnyReading, Exemplar, HistogramReading, Part, Reading
from lockstep_agent.exposition.series_budget import SeriesBudget
from lockstep_catalogue import Endpoint, Kind, Metric, agent, metrics_of
from lockstep_prometheus.scrape_text import (
    OPENMETRICS,
    OPENMETRICS_TYPE,
    TEXT_TYPE,
    escape,
    write_head,
    write_number,
    write_stem,
)

_log = logging.getLogger(__name__)
_METRICS = metrics_of(Endpoint.AGENT)
_HEADS = {
    metric.name: tuple(
        f"{write_head(metric, is_openmetrics=is_openmetrics)}\n".encode()
        for is_openmetrics in (False, True)
    )
    for metric in _METRICS
}
"""What precedes the series of a metric in text and in OpenMetrics, by its name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exposition:
    """One rendered scrape in both formats.

    Attributes:
        parts: the readings that it was rendered from.
        rendered_seconds: wall clock of the rendering.
    """

    text: bytes
    openmetrics: bytes
    parts: tuple[Part, ...]
    rendered_seconds: float

    @property
    def readings(self) -> tuple[AnyReading, ...]:
        """The readings of all parts."""
        return tuple(chain.from_iterable(self.parts))

    def choose(self, accept: str) -> tuple[bytes, str]:
        """Body and content type for an Accept header."""
        if OPENMETRICS in accept:
            return self.openmetrics, OPENMETRICS_TYPE
        return self.text, TEXT_TYPE


class Renderer:
    """Renders tick after tick; works only on new readings, as long as no series comes or goes.

    A part that is the same object keeps its lines, a series with the same value its line, and a
    family without a new line its text.

    Args:
        identity: labels of every series, such as the node's name; they replace those of a reading,
            for a job may call its cluster otherwise and nothing could be joined.
        budget: chooses the readings that are served; None serves all.
    """

    def __init__(
        self, identity: Mapping[str, str] | None = None, budget: SeriesBudget | None = None
    ) -> None:
        self._budget = budget
        self._families = {
            metric.name: (_Histograms if metric.kind is Kind.HISTOGRAM else _Family)(
                metric, identity or {}
            )
            for metric in _METRICS
        }
        self._parts: tuple[Part, ...] = ()
        self._series: list[list[_Series]] = []

    def render(self, parts: Sequence[Part], now_seconds: float) -> Exposition:
        """The exposition of these readings, in the order of the catalogue.

        Args:
            parts: readings of all collectors; the first reading of a series counts.
            now_seconds: wall clock, served as the time of this tick.
        """
        all_parts = (*parts, (Reading(agent.AGENT_TICK, (), now_seconds),))
        families = self._families.values()
        served = self._budget.select(all_parts) if self._budget else all_parts
        if not self._update(served):
            count = self._rebuild(served)
            while self._budget and self._budget.fit(count):
                served = self._budget.select(all_parts)
                count = self._rebuild(served)
            self._families[agent.AGENT_SERIES.name].add(Reading(agent.AGENT_SERIES, (), count))
        self._parts = served
        return Exposition(
            text=b"".join([family.join().text for family in families]),
            openmetrics=b"".join([*(family.openmetrics for family in families), b"# EOF\n"]),
            parts=all_parts[:-1],
            rendered_seconds=now_seconds,
        )

    def _update(self, parts: tuple[Part, ...]) -> bool:
        """Takes in new values of the same series; False where a series came, went or moved."""
        if len(parts) != len(self._parts):
            return False
        for part, before, series in zip(parts, self._parts, self._series, strict=True):
            # The same object: a collector without news, or one that was not due.
            if part is before:
                continue
            if len(part) != len(series):
                return False
            for reading, line in zip(part, series, strict=True):
                if reading.labels != line.labels or reading.metric is not line.metric:
                    return False
                # NaN differs from itself, so its line is written anew each tick.
                if line.value != reading.value:  # -0.0 equals 0.0, so its line stays: no harm
                    line.set(reading.value)
        return True

    def _rebuild(self, parts: tuple[Part, ...]) -> int:
        """Builds every family anew; returns the number of samples, with that of their number."""
        for family in self._families.values():
            family.begin()
        families = self._families
        self._series = [
            [families[reading.metric.name].add(reading) for reading in part] for part in parts
        ]
        return 1 + sum(family.end() for family in families.values())


def render(readings: Iterable[AnyReading], now_seconds: float) -> Exposition:
    """The exposition of these readings alone.

    Args:
        readings: the first reading of a series counts.
        now_seconds: wall clock, served as the time of this tick.
    """
    return Renderer().render((tuple(readings),), now_seconds)


@dataclass(slots=True)
class _Series:
    """The lines of one series as they were last written."""

    family: "_Family"
    metric: Metric
    labels: tuple[str, ...]
    stems: tuple[str, ...]
    value: float | HistogramReading = math.nan  # equals no value, so that the first is written
    lines: str = ""
    with_exemplars: str = ""

    def set(self, value: float | HistogramReading) -> None:
        """Takes in another value and writes its lines."""
        self.value = value
        self.family.write(self)


@dataclass(slots=True)
class _Family:
    """The series of one metric, and their text in both formats; empty where there are none."""

    metric: Metric
    identity: Mapping[str, str]
    text: bytes = b""
    openmetrics: bytes = b""
    _series: dict[tuple[str, ...], _Series] = field(default_factory=dict)
    _before: dict[tuple[str, ...], _Series] = field(default_factory=dict)
    _changed: bool = False

    def begin(self) -> None:
        """Begins a rebuild: all series are added again; the lines of before are kept for them."""
        self._before, self._series = self._series, {}

    def add(self, reading: AnyReading) -> _Series:
        """The series of a reading; a second one of the same labels is kept out of the text."""
        labels = reading.labels
        series = None if labels in self._series else self._before.get(labels)
        if series is None:
            series = _Series(self, self.metric, labels, self._stems(labels))
        self._series.setdefault(labels, series)
        if series.value != reading.value:
            series.set(reading.value)
        return series

    def end(self) -> int:
        """Ends a rebuild: drops what was not added again; returns the number of samples left."""
        self._changed = self._changed or list(self._before) != list(self._series)
        self._before = {}
        return len(self._series) * self._samples

    def write(self, series: _Series) -> None:
        """Rewrites the lines of a series; one that cannot be written has none."""
        self._changed = True
        try:
            self._write(series)
        except Exception as error:  # noqa: BLE001  # one series must not end all scrapes
            series.lines = series.with_exemplars = ""
            _log.error("metric=%s state=unwritable error=%r", self.metric.name, error)

    def join(self) -> "_Family":
        """The family, with its text up to date; one that cannot be encoded has none."""
        if self._changed:
            self._changed = False
            try:
                self._join()
            except Exception as error:  # noqa: BLE001  # one family must not end all scrapes
                self.text = self.openmetrics = b""
                _log.error("metric=%s state=unwritable error=%r", self.metric.name, error)
        return self

    @property
    def _samples(self) -> int:
        return 1

    def _stems(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        return (write_stem(self.metric.name, self._pairs(labels)),)

    def _pairs(self, labels: tuple[str, ...]) -> dict[str, str]:
        """The labels of a series, in the order of their names."""
        own = dict(zip(self.metric.label_names, labels, strict=True))
        return dict(sorted({**own, **self.identity}.items()))

    def _write(self, series: _Series) -> None:
        assert not isinstance(series.value, HistogramReading)
        series.lines = f"{series.stems[0]} {write_number(series.value)}\n"

    def _join(self) -> None:
        if not self._series:
            self.text = self.openmetrics = b""
            return
        text_head, openmetrics_head = _HEADS[self.metric.name]
        lines = "".join([series.lines for series in self._series.values()]).encode()
        self.text = text_head + lines
        self.openmetrics = openmetrics_head + (self._with_exemplars() or lines)

    def _with_exemplars(self) -> bytes:
        """The lines in OpenMetrics, where they differ from those in text."""
        return b""


class _Histograms(_Family):
    """A family whose series have a line for each bucket, one for the count and one for the sum."""

    @property
    def _samples(self) -> int:
        return len(self.metric.buckets) + 3

    def _stems(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        bucket, total, count = self.metric.sample_names
        bounds = (*(write_number(bound) for bound in self.metric.buckets), "+Inf")
        pairs = self._pairs(labels)
        stems = (
            write_stem(bucket, dict(sorted((pairs | {"le": bound}).items()))) for bound in bounds
        )
        return (*stems, write_stem(count, pairs), write_stem(total, pairs))

    def _write(self, series: _Series) -> None:
        reading = series.value
        assert isinstance(reading, HistogramReading)
        *buckets, count, total = series.stems
        cumulative = [write_number(below) for below in accumulate(reading.counts)]
        lines = [f"{stem} {below}" for stem, below in zip(buckets, cumulative, strict=True)]
        ends = [_exemplar(exemplar) for exemplar in reading.exemplars] or [""] * len(lines)
        last = f"{count} {cumulative[-1]}\n{total} {write_number(reading.sum)}\n"
        series.lines = "".join([*(f"{line}\n" for line in lines), last])
        full = (f"{line}{end}\n" for line, end in zip(lines, ends, strict=True))
        series.with_exemplars = "".join([*full, last])

    def _with_exemplars(self) -> bytes:
        return "".join([series.with_exemplars for series in self._series.values()]).encode()


def _exemplar(exemplar: Exemplar | None) -> str:
    if exemplar is None:
        return ""
    inside = ",".join(f'{key}="{escape(value)}"' for key, value in sorted(exemplar.labels.items()))
    return f" # {{{inside}}} {write_number(exemplar.value)} {exemplar.wall_seconds}"
