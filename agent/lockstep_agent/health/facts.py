"""The readings of one moment, found by metric and labels."""

from collections.abc import Iterable, Mapping

from lockstep_agent.collector import AnyReading, Reading
from lockstep_catalogue import Metric

Labels = tuple[str, ...]


class Facts:
    """Looks up values; what nobody told is absent.

    Args:
        readings: of all collectors, in one tick; of a series told twice the first stays.
    """

    def __init__(self, readings: Iterable[AnyReading]) -> None:
        self._told: dict[str, dict[Labels, float]] = {}
        for reading in readings:
            if isinstance(reading, Reading):
                values = self._told.setdefault(reading.metric.name, {})
                values.setdefault(reading.labels, reading.value)

    def of(self, metric: Metric) -> Mapping[Labels, float]:
        """Every value of a metric by its label values."""
        return self._told.get(metric.name, {})

    def value(self, metric: Metric, *labels: str) -> float | None:
        """One value, None when it is unknown."""
        return self.of(metric).get(labels)

    def is_set(self, metric: Metric, *labels: str) -> bool:
        """Whether a value is known and above 0."""
        return (self.value(metric, *labels) or 0) > 0
