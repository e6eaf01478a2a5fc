"""The closed vocabularies of a job: outcomes, failure classes, goodput states, verdicts, phases.

Each is declared here and nowhere else; ``labels`` uses the tuples for the labels of metrics.
"""

from typing import Literal, get_args

Outcome = Literal[
    "succeeded", "not_converged", "failed", "cancelled", "preempted", "time_limit", "unknown"
]
"""The end of a job or of an attempt."""
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

OutcomeOrRunning = Literal[Outcome, "running"]
"""What a report tells of a job that may still run; ``running`` is a status and no outcome."""

FailureClass = Literal["infra", "user", "unknown"]
"""Who has to act on a failure: the cluster's operators, the owner of the job, or nobody knows."""
FAILURE_CLASSES: tuple[FailureClass, ...] = get_args(FailureClass)

GoodputState = Literal[
    "productive",
    "startup",
    "data_wait",
    "communication",
    "straggler_wait",
    "host_bound",
    "checkpoint",
    "evaluation",
    "restore",
    "rework",
    "hang",
    "recovery",
    "idle",
    "held_after_end",
    "other",
    "unknown",
]
"""What allocated time goes into; the states exclude each other and sum to the allocated time."""
GOODPUT_STATES: tuple[GoodputState, ...] = get_args(GoodputState)
PHASE_STATES: dict[str, GoodputState] = {
    "init": "startup",
    "data": "data_wait",
    "forward": "productive",
    "backward": "productive",
    "sync": "communication",
    "optimizer": "productive",
    "checkpoint": "checkpoint",
    "eval": "evaluation",
    "other": "other",
    "restore": "restore",
}
"""The state that the time of a phase counts as, before hangs, rework and waiting for stragglers
are taken out of it. The phases after the end, done and failed, have none."""

PAUSE_PHASES = ("init", "checkpoint", "eval", "restore")
"""Phases in which a rank may go long without progress and be healthy."""

ENDED_PHASES = frozenset({"done", "failed"})
"""Last phases of a rank: nothing follows them in its attempt."""

Clock = Literal["host", "device"]
"""Whose clock the times of steps are by: the processor's, or the stream's of a GPU."""
CLOCKS: tuple[Clock, ...] = get_args(Clock)

Verdict = Literal["rank", "group", "workload", "in_turns", "planned", "rare", "nobody", "unknown"]
"""The slow part: a rank; a node, stage, replica or expert; the work; many ranks in turn by one
cause; planned work of some ranks; a handful of steps that cost much; nobody."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

Severity = Literal[
    "failed",
    "hung",
    "out_of_memory",
    "not_finite",
    "resumed",
    "stopped",
    "slow",
    "unknown",
    "nobody",
]
"""What the first line of a report is about, the gravest first."""
SEVERITIES: tuple[Severity, ...] = get_args(Severity)

SYNTHETIC_CLASS = "synthetic"
"""Class of jobs that only prove the way to the pager: no objective counts them."""
CANARY_ALERT = "TrainCanary"
"""The alert that `lockstep canary` makes."""
