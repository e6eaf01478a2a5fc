"""What scheduler and launchers state about a job as a whole, and which word holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .arrivals import Fact
from .runs import Run

_STATING_KINDS = ("job_submitted", "job_started")
COMPARED = (
    "queue", "project", "user", "job_class", "name", "num_nodes", "num_gpus", "gpu_model",
)  # fmt: skip
"""Fields whose losing words are disagreements."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """Words on a job, each side in order."""

    scheduler: Sequence[Fact]
    launchers: Sequence[Fact]

    def value(self, name: str) -> Any:
        """The scheduler's newest word, else the first of a launcher; None where nobody says."""
        stated = [fact.fields[name] for fact in self.scheduler if fact.fields.get(name) is not None]
        if stated:
            return stated[-1]
        first = (fact.fields[name] for fact in self.launchers if fact.fields.get(name) is not None)
        return next(first, None)

    def scheduler_value(self, name: str, latest: float | None) -> Any:
        """The scheduler's newest word that is not later than a time; None where it has none."""
        stated = [
            fact.fields[name]
            for fact in self.scheduler
            if fact.fields.get(name) is not None and (latest is None or fact.time <= latest)
        ]
        return stated[-1] if stated else None

    def disagreements(self) -> set[tuple[str, str, Any]]:
        """Words of launchers that the scheduler's replaced."""
        return {
            ("launcher", name, fact.fields[name])
            for name in COMPARED
            if any(word.fields.get(name) is not None for word in self.scheduler)
            for fact in self.launchers
            if fact.fields.get(name) is not None and fact.fields[name] != self.value(name)
        }

    @property
    def submitted(self) -> float | None:
        """The earliest submission; None where nobody stated it."""
        times = [f.time for f in (*self.scheduler, *self.launchers) if f.kind == "job_submitted"]
        return min(times, default=None)

    def queue_wait(self, runs: Sequence[Run]) -> float | None:
        """Seconds from submission to the first start; the scheduler's own where it has both."""
        own = [fact.time for fact in self.scheduler if fact.kind == "job_submitted"]
        own_starts = [fact.time for fact in self.scheduler if fact.kind == "job_started"]
        if own and own_starts:
            return max(0.0, min(own_starts) - min(own))
        begins = [run.begin for run in runs if run.has_start]
        if self.submitted is None or not begins:
            return None
        return max(0.0, min(begins) - self.submitted)


def words_of(facts: Sequence[Fact]) -> Words:
    """The words of a job's facts, which are in order."""
    stating = [fact for fact in facts if fact.kind in _STATING_KINDS]
    return Words(
        scheduler=[fact for fact in stating if not fact.node],
        launchers=[fact for fact in stating if fact.node],
    )
