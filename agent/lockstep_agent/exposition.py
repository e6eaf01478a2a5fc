"""From readings to the bytes of a scrape; the only file that knows prometheus_client."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry, samples
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector as FamilySource

from lockstep_agent.collector import AnyReading, Exemplar, HistogramReading, Reading
from lockstep_catalogue import METRICS, Kind, Metric, health

_OPENMETRICS = "application/openmetrics-text"
_write_text, _TEXT_TYPE = choose_encoder("text/plain; version=0.0.4")
_write_openmetrics, _OPENMETRICS_TYPE = choose_encoder(f"{_OPENMETRICS}; version=1.0.0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Exposition:
    """One rendered scrape in both formats.

    Attributes:
        rendered_seconds: wall clock of the rendering.
    """

    text: bytes
    openmetrics: bytes
    rendered_seconds: float

    def choose(self, accept: str) -> tuple[bytes, str]:
        """Body and content type for an Accept header."""
        if _OPENMETRICS in accept:
            return self.openmetrics, _OPENMETRICS_TYPE
        return self.text, _TEXT_TYPE


class _Families(FamilySource):
    """Hands finished families to the library's writers."""

    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def describe(self) -> list[Family]:
        return []

    def collect(self) -> Iterator[Family]:
        return iter(self._families)


def render(readings: Iterable[AnyReading], now_seconds: float) -> Exposition:
    """The exposition of these readings, in the order of the catalogue.

    Args:
        readings: of all collectors; no series twice.
        now_seconds: wall clock, served as the time of this tick.
    """
    told: dict[Metric, list[AnyReading]] = {metric: [] for metric in METRICS}
    for reading in readings:
        told[reading.metric].append(reading)
    told[health.AGENT_TICK].append(Reading(health.AGENT_TICK, (), now_seconds))
    series = 1 + sum(_series(reading) for group in told.values() for reading in group)
    told[health.AGENT_SERIES].append(Reading(health.AGENT_SERIES, (), series))
    registry = CollectorRegistry()
    registry.register(
        _Families([_family(metric, group) for metric, group in told.items() if group])
    )
    return Exposition(
        text=_write_text(registry),
        openmetrics=_write_openmetrics(registry),
        rendered_seconds=now_seconds,
    )


def _series(reading: AnyReading) -> int:
    return len(reading.counts) + 2 if isinstance(reading, HistogramReading) else 1


def _family(metric: Metric, readings: list[AnyReading]) -> Family:
    if metric.kind is Kind.HISTOGRAM:
        return _histogram(metric, readings)
    make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = make(metric.name, metric.help, labels=metric.label_names, unit=metric.unit.value)
    for reading in readings:
        assert isinstance(reading, Reading)
        family.add_metric(reading.labels, reading.value)
    return family


def _histogram(metric: Metric, readings: list[AnyReading]) -> Family:
    family = HistogramMetricFamily(
        metric.name, metric.help, labels=metric.label_names, unit=metric.unit.value
    )
    bounds = (*(str(bound) for bound in metric.buckets), "+Inf")
    for reading in readings:
        assert isinstance(reading, HistogramReading)
        exemplars = reading.exemplars or [None] * len(bounds)
        cumulative = zip(bounds, accumulate(reading.counts), exemplars, strict=True)
        family.add_metric(reading.labels, [_bucket(*told) for told in cumulative], reading.sum)
    return family


def _bucket(
    bound: str, count: int, told: Exemplar | None
) -> tuple[str, float] | tuple[str, float, samples.Exemplar]:
    if told is None:
        return bound, count
    exemplar = samples.Exemplar(dict(told.labels), told.value, told.wall_seconds)
    return bound, count, exemplar
