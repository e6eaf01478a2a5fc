"""A situation: plain actions on a cluster, and the jobs that the ledger then has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .diary import Diary
from .manifests import job

if TYPE_CHECKING:
    from .cluster import Cluster

Part = Literal["feed", "feed-2", "ledger", "apiserver", "kine", "controllers", "scheduler", "kwok"]
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
class Phases:
    """Parts of a script before, during and after an outage."""

    before: Callable[["Cluster"], None]
    during: Callable[["Cluster"], None]
    after: Callable[["Cluster"], None]


@dataclass(frozen=True)
class Situation:
    """A situation of an ordinary or a bad week.

    Attributes:
        absent: parts of ids that no job may have.
        logged_once: a pattern that exactly one line of the feed's log matches.
        exclusive: it stops feed or ledger, so it has a pair of them to itself.
        lab_wide: it stops the server or changes its kinds, so it has the whole lab to itself.
        way: of an outage that several share, each with its phases.
    """

    name: str
    script: Callable[["Cluster"], None]
    expected: tuple[ExpectedJob, ...]
    absent: tuple[str, ...] = ()
    logged_once: str | None = None
    exclusive: bool = False
    lab_wide: bool = False
    way: str = ""
    phases: Phases | None = None


def situation(
    why: str, *expected: ExpectedJob, **fields: Any
) -> Callable[[Callable[["Cluster"], None]], Situation]:
    """Make a situation of a script, whose name it takes; ``why`` is for its readers."""
    del why

    def wrap(script: Callable[["Cluster"], None]) -> Situation:
        return Situation(script.__name__.replace("_", "-"), script, expected, **fields)

    return wrap


def outage(
    why: str, *expected: ExpectedJob, **fields: Any
) -> Callable[[Callable[["Cluster"], None]], Situation]:
    """Make a situation of an outage; it has a ledger and its feeds to itself."""
    return situation(why, *expected, exclusive=True, **fields)


def single(
    why: str, expected: ExpectedJob, gpus: int, *, ends: str = "Complete", **spec: Any
) -> Situation:
    """Return the situation of one Job (fields as of ``manifests.job``) until its condition."""

    def script(c: "Cluster") -> None:
        c.apply(job(expected.name, gpus, **spec))
        c.wait_condition("Job", expected.name, ends)

    del why
    return Situation(expected.name, script, (expected,))


def wait_for_pod(c: "Cluster", prefix: str, before: str) -> str:
    """Wait for a running pod other than the one before; return its name."""
    for _ in range(600):
        for found in c.list_pods(prefix):
            name = str(found["metadata"]["name"])
            if found["status"].get("phase") == "Running" and name != before:
                return name
        c.wait(0.2)
    raise AssertionError(f"no pod {prefix}* other than {before!r} runs")


def waited(name: str, begin: str = "") -> Callable[[Diary], float]:
    """Return the queue wait: from the creation of NAME, or a noted time, until its pods run."""

    def compute(diary: Diary) -> float:
        return diary.first_start(name) - diary.at[begin or f"created:{name}"]

    return compute


def collect(values: Mapping[str, object]) -> list[Situation]:
    """Return the situations among the values of a module's names, and in lists of them."""
    found = []
    for value in values.values():
        items = value if isinstance(value, list) else [value]
        found += [each for each in items if isinstance(each, Situation)]
    return found
