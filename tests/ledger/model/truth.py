"""What truly happened to jobs: the base that histories tell of, each source in its own way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Feed = Literal["launcher", "slurm", "kubernetes"]
"""Who tells of a job: its launchers, a scheduler alone, or both by one of each."""

Ending = Literal[
    "success", "user_failure", "infra_failure", "node_lost", "all_dead", "xid_elsewhere",
    "preempted", "time_limit", "cancelled", "bare", "hang", "not_converged", "silent_success",
    "never",
]  # fmt: skip
REQUEUED: tuple[Ending, ...] = (
    "preempted", "preempted", "infra_failure", "user_failure", "node_lost", "all_dead",
    "xid_elsewhere", "bare",
)  # fmt: skip
"""Endings after which a job starts again, those of preemption twice as often."""
FINAL: tuple[Ending, ...] = (
    "success", "success", "success", "success", "user_failure", "infra_failure", "node_lost",
    "all_dead", "xid_elsewhere", "preempted", "time_limit", "cancelled", "bare", "hang",
    "not_converged", "silent_success", "never",
)  # fmt: skip


@dataclass(kw_only=True, slots=True)
class TrueAttempt:
    number: int
    begin: float
    end: float


@dataclass(kw_only=True, slots=True)
class TrueRun:
    """A stretch in which a job held its resources."""

    begin: float
    end: float
    nodes: Sequence[str]
    gpus_per_node: int
    ending: Ending
    attempts: Sequence[TrueAttempt]
    cause_node: str
    cause: str = ""


@dataclass(kw_only=True, slots=True)
class TrueJob:
    """A job as it was, and what its events suffice to know.

    Attributes:
        job_id: under which its first teller speaks of it.
        feeds: who tells of it.
        in_queue: what became of it in the queue after its last run.
    """

    job_id: str
    cluster: str
    feeds: tuple[Feed, ...]
    words: Mapping[str, Any]
    submitted: float
    runs: list[TrueRun] = field(default_factory=list)
    in_queue: Literal["started", "waits", "cancelled"] = "started"

    @property
    def has_launcher(self) -> bool:
        return "launcher" in self.feeds

    @property
    def scheduler(self) -> Feed | None:
        """The scheduler that tells of it; None for none."""
        return next((feed for feed in self.feeds if feed != "launcher"), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """An event with the sender that has it, whose clock is ahead of the true time."""

    sender: str
    clock_offset: float
    true_time: float
    event: Mapping[str, Any]


def tick(seconds: float) -> float:
    """The nearest eighth of a second, which sums without rounding."""
    return round(seconds * 8) / 8
