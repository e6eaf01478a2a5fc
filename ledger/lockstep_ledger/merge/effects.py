"""What an event adds to the counters and to the counts of objectives."""

from dataclasses import dataclass, field

from lockstep_catalogue import Metric
from lockstep_ledger.merge.job import Job

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SloRow:
    """Something that counts for an objective at a time: how much of ``total`` was good."""

    time_seconds: float
    cluster: str
    job_class: str
    slo: str
    good: float
    total: float


@dataclass(slots=True)
class Effects:
    """Collected while events are applied, in their order."""

    groups: dict[Labels, None] = field(default_factory=dict)
    increments: list[tuple[Metric, Labels, float]] = field(default_factory=list)
    observations: list[tuple[Metric, Labels, float]] = field(default_factory=list)
    _slo: dict[tuple[float, str, str, str], tuple[float, float]] = field(default_factory=dict)

    def declare(self, group: Labels) -> None:
        """Names a group of jobs, of which every combination of labels shall be there at 0."""
        self.groups[group] = None

    def add(self, metric: Metric, labels: Labels, amount: float = 1.0) -> None:
        """Adds to a counter."""
        self.increments.append((metric, labels, amount))

    def observe(self, metric: Metric, labels: Labels, value: float) -> None:
        """Adds a value to a histogram."""
        self.observations.append((metric, labels, value))

    def count(self, job: Job, slo: str, time_seconds: float, good: float, total: float) -> None:
        """Adds to the counts of an objective; those of one moment and class are one row."""
        key = (time_seconds, job.cluster, job.job_class, slo)
        good_before, total_before = self._slo.get(key, (0.0, 0.0))
        self._slo[key] = (good_before + good, total_before + total)

    @property
    def slo_rows(self) -> list[SloRow]:
        """The counts of objectives."""
        return [SloRow(*key, *counts) for key, counts in self._slo.items()]
