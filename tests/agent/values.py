"""The readings of collectors by metric and labels."""

from collections.abc import Iterable
from itertools import chain

from lockstep_agent.collector import AnyReading, Collector, Reading
from lockstep_catalogue import Metric

Values = dict[tuple[Metric, tuple[str, ...]], float]


def values_of(*collectors: Collector) -> Values:
    """What collectors read, without histograms."""
    return values_in(reading for collector in collectors for reading in collector.collect())


def values_in(readings: Iterable[AnyReading]) -> Values:
    return {
        (reading.metric, reading.labels): reading.value
        for reading in readings
        if isinstance(reading, Reading)
    }


def training_values(*readings: Iterable[AnyReading]) -> dict[str, dict[tuple[str, ...], float]]:
    """Those of training, without histograms, by name and labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for (metric, labels), value in values_in(chain(*readings)).items():
        if metric.name.startswith("lockstep_train"):
            found.setdefault(metric.name, {})[labels] = value
    return found
