"""The readings of one moment, found by metric and labels."""

from collections.abc import Iterable, Iterator, Mapping

from lockstep_agent.collector import AnyReading, Reading
from lockstep_catalogue import Metric

Labels = tuple[str, ...]


class Facts:
    """Finds values by metric and labels; what no collector read is absent.

    Args:
        readings: of all collectors, in one tick; the first reading of a series counts.
    """

    def __init__(self, readings: Iterable[AnyReading]) -> None:
        self._readings: dict[str, list[AnyReading]] = {}
        self._values: dict[str, dict[Labels, float]] = {}
        for reading in readings:
            self._readings.setdefault(reading.metric.name, []).append(reading)

    def of(self, metric: Metric) -> Mapping[Labels, float]:
        """Every value of a metric by its label values."""
        values = self._values.get(metric.name)
        if values is None:  # built on demand: most metrics are never asked for
            values = self._values[metric.name] = {}
            for reading in self._readings.get(metric.name, ()):
                if isinstance(reading, Reading):
                    values.setdefault(reading.labels, reading.value)
        return values

    def readings(self, names: Iterable[str]) -> Iterator[AnyReading]:
        """The readings of the metrics of these names."""
        return (reading for name in names for reading in self._readings.get(name, ()))

    def value(self, metric: Metric, *labels: str) -> float | None:
        """One value, None when it is unknown."""
        return self.of(metric).get(labels)

    def is_set(self, metric: Metric, *labels: str) -> bool:
        """Whether a value is known and above 0."""
        return (self.value(metric, *labels) or 0) > 0
