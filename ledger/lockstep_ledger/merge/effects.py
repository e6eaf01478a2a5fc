"""Additions of a transaction to the counters and to the counts of objectives."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from lockstep_catalogue import Metric
from lockstep_catalogue.ledger import AMENDED
from lockstep_ledger.merge.spans import WindowRow

Labels = tuple[str, ...]


@dataclass(slots=True)
class Effects:
    """Collected while jobs are derived."""

    groups: dict[Labels, None] = field(default_factory=dict)
    increments: list[tuple[str, Labels, float]] = field(default_factory=list)
    observations: list[tuple[Metric, Labels, float]] = field(default_factory=list)
    _slo: dict[tuple[float, str, str, str], tuple[float, float]] = field(default_factory=dict)

    def declare(self, group: Labels) -> None:
        """Names a group of jobs, of which every combination of labels shall be there at 0."""
        self.groups[group] = None

    def add(self, name: str, labels: Labels, amount: float) -> None:
        """Adds to a counter."""
        self.increments.append((name, labels, amount))

    def amend(self, name: str, group: Labels, amount: float) -> None:
        """Notes what a counter of a group holds too much."""
        self.add(AMENDED.name, (*group, name), amount)

    def observe(self, metric: Metric, labels: Labels, value: float) -> None:
        """Adds a value to a histogram."""
        self.observations.append((metric, labels, value))

    def count(self, group: Labels, rows: Iterable[WindowRow], sign: int = 1) -> None:
        """Adds to the counts of objectives, or takes back; those of one moment are one row."""
        for time, slo, good, total in rows:
            key = (time, group[0], group[-1], slo)
            good_before, total_before = self._slo.get(key, (0.0, 0.0))
            self._slo[key] = (good_before + sign * good, total_before + sign * total)

    @property
    def slo_rows(self) -> list[tuple[str, str, WindowRow]]:
        """Cluster, class of jobs and count of each objective at each time."""
        return [
            (cluster, job_class, WindowRow(time, slo, *counts))
            for (time, cluster, job_class, slo), counts in self._slo.items()
            if any(counts)
        ]
