"""What a situation is: plain actions on a cluster, and the jobs that the ledger then has."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from .diary import Diary

Manifest = dict[str, Any]
Part = Literal["feed", "feed-2", "ledger", "apiserver", "kine", "controllers", "scheduler", "kwok"]
Figure = float | Callable[[Diary], float]  # by arithmetic, or from what the server wrote of pods


class Cluster(Protocol):
    """Everything that a script does. Names without a namespace are in the situation's own."""

    namespace: str
    diary: Diary

    @property
    def second_namespace(self) -> str:
        """Another namespace of the situation."""

    def apply(self, manifest: Manifest, *, owner: Manifest | None = None) -> Manifest:
        """Create an object, below an owner where one is given; return what the server made."""

    def patch(self, kind: str, name: str, change: Manifest, *, status: bool = False) -> Manifest:
        """Merge a change into an object, or into its status as its controller would."""

    def delete(
        self, kind: str, name: str, *, propagation: str = "Background", by_force: bool = False
    ) -> None:
        """Delete an object; return at once. By force: without a grace period, as for a lost pod."""

    def read(self, kind: str, name: str) -> Manifest:
        """Return an object."""

    def list_pods(self, prefix: str) -> Sequence[Manifest]:
        """Return the pods whose names begin so, by name."""

    def wait_pods(self, prefix: str, count: int, phase: str = "Running") -> Sequence[Manifest]:
        """Wait until exactly so many pods are in this phase; return them."""

    def wait_condition(self, kind: str, name: str, condition: str) -> None:
        """Wait until a condition of an object is true."""

    def wait_gone(self, kind: str, name: str) -> None:
        """Wait until an object is no longer there."""

    def wait_recorded(self, name: str, *, is_open: bool = True) -> None:
        """Wait until the ledger has a running (or an ended) job of this name."""

    def wait(self, seconds: float) -> None:
        """Let time pass."""

    def note(self, name: str) -> None:
        """Write the server's time into the diary."""

    def end_pod(
        self,
        name: str,
        exit_code: int = 0,
        reason: str = "",
        *,
        pod_reason: str = "",
        message: str = "",
        disruption: str = "",
    ) -> None:
        """End the containers of a pod as its kubelet would."""

    def start_pod(self, name: str) -> None:
        """Let the containers of a pod that waits for a hand run."""

    def restart_container(
        self, name: str, *, exit_code: int, reason: str = "Error", pause: float
    ) -> None:
        """End the container of a pod, let it back off, and start it again."""

    def evict(self, name: str) -> None:
        """Evict a pod by the eviction API, as `kubectl drain` does."""

    def add_node(self, name: str, gpus: int) -> None:
        """Add a node for this situation: its pods select it by the label kubernetes.io/hostname."""

    def silence_node(self, name: str) -> None:
        """Let the kubelet of a node fall silent, as one that lost its power."""

    def remove_node(self, name: str) -> None:
        """Delete a node."""

    def taint_node(self, name: str, key: str, effect: str = "NoExecute") -> None:
        """Taint a node."""

    def stop(self, part: Part) -> None:
        """Stop a part and wait until it has ended."""

    def kill(self, part: Part) -> None:
        """End a part by SIGKILL."""

    def start(self, part: Part) -> None:
        """Start a part that was stopped, and wait until it serves."""

    def set_clock_offset(self, part: Part, seconds: float) -> None:
        """Set the clock that a part sees so far ahead (or, negative, behind) of the server's."""

    def add_kind(self, name: str) -> None:
        """Define a kind as PLURAL.GROUP."""

    def remove_kind(self, name: str) -> None:
        """Delete the definition of a kind with all its objects."""

    def forbid(self, name: str) -> None:
        """Take the right to list and watch PLURAL.GROUP from the feed's account."""

    def allow(self, name: str) -> None:
        """Give it back."""

    def report_from_launcher(
        self, name: str, outcome: str, failure_class: str = "", cause: str = "", alias: str = ""
    ) -> None:
        """Send to the ledger what `lockstep run` says of a job whose id is NAME, start and end."""

    def rotate_token(self) -> None:
        """Write a new token into the feed's file and revoke the one before."""

    def revoke_token(self) -> None:
        """Revoke the feed's token; nothing replaces it until `rotate_token`."""

    def compact(self) -> None:
        """Make every revision that a watch could resume from too old: the server says 410."""


class LedgerView(Protocol):
    """What the ledger knows; the feed's own counters are beside it."""

    def jobs(self) -> list[dict[str, Any]]:
        """Return all records of jobs."""

    def left_out(self) -> int:
        """Return how many workloads the feed has counted as left out."""


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
    user: str | None = None
    num_gpus: int | None = None
    num_nodes: int | None = None
    is_open: bool = False
    started: Figure | None = None
    ended: Figure | Between | None = None
    namespace: Literal["own", "second"] | None = None
    refused: tuple[str, ...] = ()  # outcomes that would be wrong, where several are right
    pods: str | None = None  # prefix of its pods' names, where it is not that of the job
    owned_by_launcher: bool = False  # a launcher's word decides, and was sent by the script


@dataclass(frozen=True)
class Situation:
    """A situation of an ordinary or a bad week.

    Attributes:
        exclusive: it stops feed or ledger, so it has a pair of them to itself.
        lab_wide: it stops the server or changes its kinds, so it has the whole lab to itself.
        absent: parts of ids that no job may have.
        left_out: workloads that the feed counts and does not take.
        logged_once: a pattern that exactly one line of the feed's log matches.
        options: options of the feed, beyond those of the runner.
        prepare: what is done before the feed starts.
        phases: of an outage whose script is before, leave, during, come back, after: those of one
            `way` may share one outage, so that a runner needs few of them.
    """

    name: str
    why: str
    script: Callable[[Cluster], None]
    expected: tuple[ExpectedJob, ...]
    absent: tuple[str, ...] = ()
    left_out: int | None = None
    logged_once: str | None = None
    exclusive: bool = False
    lab_wide: bool = False
    outage: bool = False
    options: tuple[str, ...] = ()
    prepare: Callable[[Cluster], None] | None = None
    notes: str = ""
    way: str = ""
    phases: "Phases | None" = None


@dataclass(frozen=True)
class Phases:
    """What happens to the job before, during and after an outage."""

    before: Callable[[Cluster], None]
    during: Callable[[Cluster], None]
    after: Callable[[Cluster], None]


def situation(
    why: str,
    *expected: ExpectedJob,
    absent: tuple[str, ...] = (),
    left_out: int | None = None,
    logged_once: str | None = None,
    exclusive: bool = False,
    lab_wide: bool = False,
    outage: bool = False,
    options: tuple[str, ...] = (),
    prepare: Callable[[Cluster], None] | None = None,
    notes: str = "",
) -> Callable[[Callable[[Cluster], None]], Situation]:
    """Make a situation of a script, whose name it takes."""

    def wrap(script: Callable[[Cluster], None]) -> Situation:
        name = script.__name__.replace("_", "-")
        return Situation(
            name, why, script, expected, absent, left_out, logged_once,
            exclusive or outage, lab_wide, outage, options, prepare, notes,
        )  # fmt: skip

    return wrap


def outage(
    why: str,
    *expected: ExpectedJob,
    absent: tuple[str, ...] = (),
    left_out: int | None = None,
    logged_once: str | None = None,
    lab_wide: bool = False,
    prepare: Callable[[Cluster], None] | None = None,
    notes: str = "",
) -> Callable[[Callable[[Cluster], None]], Situation]:
    """Make a situation of an outage; it has a ledger and its feeds to itself."""
    return situation(
        why, *expected, absent=absent, left_out=left_out, logged_once=logged_once,
        lab_wide=lab_wide, outage=True, prepare=prepare, notes=notes,
    )  # fmt: skip


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
