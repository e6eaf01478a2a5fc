"""The readings of collectors by metric and labels."""

from collections.abc import Iterable

from lockstep_agent.collector import AnyReading, Collector, Reading
from lockstep_catalogue import Metric

Values = dict[tuple[Metric, tuple[str, ...]], float]


def values_of(*collectors: Collector) -> Values:
    """What collectors read, without histograms."""
    return values_in(reading for collector in collectors for reading in collector.collect())


def values_in(readings: Iterable[AnyReading]) -> Values:
    """The same of readings."""
    return {
        (reading.metric, reading.labels): reading.value
        for reading in readings
        if isinstance(reading, Reading)
    }
