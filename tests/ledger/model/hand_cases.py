"""Short spellings for cases that are worked out by hand: times are seconds after BASE_SECONDS."""

from collections.abc import Sequence
from typing import Any

from .arrivals import Arrival
from .histories import BASE_SECONDS
from .job_history import Settings, Settlement
from .ledger_model import Expected, expect
from .small_jobs import word
from .truth import Message

Fields = dict[str, Any]
FAR_SECONDS = 90 * 86_400.0
ENDED_WELL: Fields = {"outcome": "succeeded"}
TIMED_OUT: Fields = {"outcome": "failed", "failure_class": "unknown", "cause": "collective_timeout"}
KILLED: Fields = {"outcome": "failed", "failure_class": "unknown", "cause": "killed"}
OUT_OF_GPU_MEMORY: Fields = {"outcome": "failed", "failure_class": "user", "cause": "gpu_oom"}
PREEMPTED: Fields = {"outcome": "preempted"}


class Story:
    """Gathers the events of a case."""

    def __init__(self) -> None:
        """Begins empty."""
        self.messages: list[Message] = []

    def slurm(self, seconds: float, kind: str, attempt: int = 0, **fields: Any) -> "Story":
        """A scheduler's word."""
        return self.node("", seconds, kind, attempt, **fields)

    def node(
        self, name: str, seconds: float, kind: str, attempt: int = 0, **fields: Any
    ) -> "Story":
        """A node's word."""
        number = len(self.messages)
        self.messages.append(word(number, name, seconds, kind, attempt, **fields))
        return self

    def span(self, name: str, begin: float, end: float, attempt: int = 0, **ending: Any) -> "Story":
        """A node's start with 8 ranks and its end."""
        self.node(name, begin, "job_started", attempt, nproc_per_node=8)
        return self.node(name, end, "job_finished", attempt, **(ending or ENDED_WELL))

    def arrivals(self) -> list[Arrival]:
        """Each event, received as it happens."""
        return [Arrival(event=each.event, received=each.true_time) for each in self.messages]

    def expected(
        self,
        now: float = FAR_SECONDS,
        settings: Settings | None = None,
        settlements: Sequence[Settlement] = (),
    ) -> Expected:
        """What a ledger has to hold at a moment."""
        moment = BASE_SECONDS + now
        return expect(self.arrivals(), settings or Settings(), moment, settlements)

    def record(self, now: float = FAR_SECONDS, settings: Settings | None = None) -> dict[str, Any]:
        """The record of the only job."""
        (record,) = self.expected(now, settings).records.values()
        return dict(record)

    def counters(self, now: float = FAR_SECONDS) -> dict[str, float]:
        """Counts by family and by the labels that are not of the group."""
        group = {"cluster", "queue", "project", "job_class"}
        return {
            " ".join([family, *(value for name, value in labels if name not in group)]): count
            for (family, labels), count in self.expected(now).counters.items()
        }

    def rows(self, slo: str, now: float = FAR_SECONDS) -> list[tuple[float, float, float]]:
        """Time, good and total of each row of an objective."""
        return [
            (row.time - BASE_SECONDS, row.good, row.total)
            for row in self.expected(now).rows
            if row.slo == slo
        ]
