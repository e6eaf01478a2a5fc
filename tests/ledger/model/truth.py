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
    """An attempt of all nodes of a run."""

    number: int
    begin: float
    end: float


@dataclass(kw_only=True, slots=True)
class TrueRun:
    """A stretch in which a job held its resources.

    Attributes:
        end: when the scheduler had them back.
        cause_node: node that failed first.
    """

    begin: float
    end: float
    nodes: Sequence[str]
    gpus_per_node: int
    ending: Ending
    attempts: Sequence[TrueAttempt]
    cause_node: str
    cause: str = ""

    @property
    def gpu_seconds(self) -> float:
        """GPU time that it held."""
        return (self.end - self.begin) * len(self.nodes) * self.gpus_per_node


@dataclass(kw_only=True, slots=True)
class TrueJob:
    """A job as it was, and what its events suffice to know.

    Attributes:
        job_id: under which its first teller speaks of it.
        feeds: who tells of it.
        in_queue: what became of it in the queue after its last run.
        checkpoints: durable ones that its nodes tell of.
        states_gpus: whether the scheduler tells the number of GPUs.
        keeps_ends: whether the scheduler tells how a run ended that it requeues.
    """

    job_id: str
    cluster: str
    feeds: tuple[Feed, ...]
    words: Mapping[str, Any]
    submitted: float
    runs: list[TrueRun] = field(default_factory=list)
    in_queue: Literal["started", "waits", "cancelled"] = "started"
    checkpoints: int = 0
    resumes: int = 0
    keeps_ends: bool = True
    states_gpus: bool = True

    @property
    def has_launcher(self) -> bool:
        """Whether its nodes report."""
        return "launcher" in self.feeds

    @property
    def scheduler(self) -> Feed | None:
        """The scheduler that tells of it; None for none."""
        return next((feed for feed in self.feeds if feed != "launcher"), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """An event with the sender that has it.

    Attributes:
        sender: name of the node, or of the scheduler.
        clock_offset: by how much the sender's clock is ahead of the true time.
        true_time: when it happened.
    """

    sender: str
    clock_offset: float
    true_time: float
    event: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """Events of several jobs and sources, in the order in which they happened."""

    seed: int
    messages: Sequence[Message]
    jobs: Sequence[TrueJob]


def tick(seconds: float) -> float:
    """The nearest eighth of a second, which sums without rounding."""
    return round(seconds * 8) / 8


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownEnding:
    """What the evidence of an ending suffices to know."""

    outcome: str
    failure_class: str | None = None


def known_ending(run: TrueRun, *, has_launcher: bool, has_scheduler: bool) -> KnownEnding:
    """Outcome and class that follow from what the sources know of an ending."""
    is_dark = run.ending == "node_lost" and len(run.nodes) == 1
    by_launcher = _UNKNOWN if is_dark else _KNOWN_BY_LAUNCHER.get(run.ending)
    by_scheduler = _KNOWN_BY_SCHEDULER.get(run.ending)
    if not has_scheduler:
        return (by_launcher if has_launcher else None) or _FAILED
    if not has_launcher:
        return by_scheduler or _FAILED
    if run.ending in {"user_failure", "infra_failure", "xid_elsewhere", "not_converged"}:
        return by_launcher or _FAILED
    return by_scheduler or by_launcher or _FAILED


_UNKNOWN = KnownEnding(outcome="unknown", failure_class="unknown")
_FAILED = KnownEnding(outcome="failed", failure_class="unknown")
_BY_BOTH: dict[Ending, KnownEnding] = {
    "success": KnownEnding(outcome="succeeded"),
    "preempted": KnownEnding(outcome="preempted"),
    "cancelled": KnownEnding(outcome="cancelled"),
    "time_limit": KnownEnding(outcome="time_limit", failure_class="user"),
    "never": _UNKNOWN,
}
_KNOWN_BY_LAUNCHER: dict[Ending, KnownEnding] = {
    **_BY_BOTH,
    "not_converged": KnownEnding(outcome="not_converged"),
    "user_failure": KnownEnding(outcome="failed", failure_class="user"),
    "infra_failure": KnownEnding(outcome="failed", failure_class="infra"),
    "xid_elsewhere": KnownEnding(outcome="failed", failure_class="infra"),
    "all_dead": _UNKNOWN,
    "silent_success": _UNKNOWN,
}
_KNOWN_BY_SCHEDULER: dict[Ending, KnownEnding] = {
    **_BY_BOTH,
    "not_converged": KnownEnding(outcome="succeeded"),
    "silent_success": KnownEnding(outcome="succeeded"),
    "node_lost": KnownEnding(outcome="failed", failure_class="infra"),
    "all_dead": KnownEnding(outcome="failed", failure_class="infra"),
    "bare": KnownEnding(outcome="failed", failure_class="user"),
    "hang": KnownEnding(outcome="cancelled"),
}
