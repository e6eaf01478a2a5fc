"""A situation: plain actions on a cluster, and the jobs that the ledger then has."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .diary import Diary

Part = Literal["feed", "feed-2", "ledger", "apiserver", "kine", "controllers", "scheduler", "kwok"]
Rows = Sequence[Sequence[Any]]  # verbs with their arguments
Figure = float | Callable[[Diary], float]  # by arithmetic, or from what the server wrote of pods


@dataclass(frozen=True)
class Between:
    """A figure that the issue bounds and does not fix."""

    low: Figure
    high: Figure


@dataclass(frozen=True)
class ExpectedJob:
    """One record of the ledger. A field that is None is not decided by the issue.

    Attributes:
        name: part of the job's id; no other situation uses it.
        gpu_seconds: pods' running time times their GPUs. A number is arithmetic by hand; the runner
            also compares with what the server wrote of the pods.
    """

    name: str
    outcome: str | None = None
    failure_class: str | None = None
    cause: str | None = None
    attempts: int | None = None
    gpu_seconds: Figure | Between | None = None
    queue_wait_seconds: Figure | Between | None = None
    queue: str | None = None
    num_gpus: int | None = None
    is_open: bool = False
    started: Figure | None = None
    ended: Figure | Between | None = None
    namespace: Literal["own", "second"] | None = None
    refused: tuple[str, ...] = ()  # outcomes that would be wrong, where several are right
    pods: str | None = None  # prefix of its pods' names, where it is not that of the job


@dataclass(frozen=True)
class Situation:
    """A situation of an ordinary or a bad week.

    Attributes:
        absent: parts of ids that no job may have.
        logged_once: a pattern that exactly one line of the feed's log matches.
        exclusive: it stops feed or ledger, so it has a pair of them to itself.
        lab_wide: it stops the server or changes its kinds, so it has the whole lab to itself.
        way: of an outage that several share, each with its phases before, during and after it.
    """

    name: str
    script: Rows
    expected: tuple[ExpectedJob, ...]
    absent: tuple[str, ...] = ()
    logged_once: str | None = None
    exclusive: bool = False
    lab_wide: bool = False
    way: str = ""
    phases: Mapping[str, Rows] = field(default_factory=dict)
