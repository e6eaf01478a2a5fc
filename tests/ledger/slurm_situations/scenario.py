"""A situation: actions on a real Slurm, and the words of ledger, pages and nodes after them.

Jobs have names of the situation's own (``a``, ``victim``). In texts, the runner puts in:

- ``{a}`` the id that Slurm gave the job
- ``{train}`` the command of ``train.py`` of this folder, ``{script}`` its path
- ``{lockstep}`` the command; ``{deploy}`` what ``lockstep deploy slurm --to`` has written
- ``{n1}``, ``{n2}`` the nodes; ``{port}`` a free port; ``{out}`` a path of the situation's own
- ``{gpu_map}`` the folder of the map
- ``{logind_clean_ipc}`` logind's clean-up, given a user
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Outcome = Literal[
    "succeeded", "not_converged", "failed", "cancelled", "preempted", "time_limit", "unknown"
]
# An empty string is "none": the job has not failed, or no name is stored.
FailureClass = Literal["infra", "user", "unknown", ""]
# An outcome that nobody has to explain has one class and one cause.
PLAIN: dict[str, tuple[FailureClass, str]] = {
    "succeeded": ("", "success"),
    "cancelled": ("", "cancelled"),
    "preempted": ("", "preemption"),
    "time_limit": ("user", "time_limit"),
}


@dataclass(frozen=True)
class Action:
    """One call of a method of ``Turn`` with its arguments."""

    verb: str
    arguments: tuple[object, ...]


def _make(verb: str) -> Callable[..., Action]:
    return lambda *arguments: Action(verb, arguments)


submit = _make("submit")
srun = _make("srun")
interrupt = _make("interrupt")
wait = _make("wait")
watch = _make("watch")
slurm = _make("slurm")
stop = _make("stop")
start = _make("start")
crash = _make("crash")
on_node = _make("on_node")
feed = _make("feed")
poll = _make("poll")
pause = _make("pause")
DISTURBING = frozenset({"stop", "start", "crash", "on_node", "feed"})
"""Actions on daemons and nodes that every job of the lab would feel."""


def running(job: str) -> Action:
    """Wait until a job runs."""
    return wait(job, "RUNNING")


TRAINING = (running("a"), watch("a"))


@dataclass(frozen=True)
class ExpectedJob:
    """One record of the ledger. None is what nothing decides; it is not compared.

    Attributes:
        failure_class, cause: of an outcome in ``PLAIN`` its own where they are None.
        attempts: runs of the job: 1 was never restarted, 0 never started; as many as
            ``gpu_seconds`` has runs where it is None.
        gpu_seconds: GPUs of each run. The sum is over the rows of `sacct -X -D` of GPUs times
            (End - Start); a row that has no node never ran. A figure is the sum itself.
        queue_wait_seconds: "first_start": Start of the first run less its Eligible, in sacct;
            "absent": never started, so there is none.
        disagreement: whether the record tells that Slurm and Lockstep do not agree.
        lost_run: run (from 0) whose work since its last checkpoint is lost.
        watched_on: nodes where a page of the job lies, or lay, under this id.
    """

    outcome: Outcome | None = None
    failure_class: FailureClass | None = None
    cause: str | None = None
    attempts: int | None = None
    gpu_seconds: tuple[int, ...] | float | None = None
    queue_wait_seconds: Literal["first_start", "absent"] | None = None
    queue: str | None = None
    project: str | None = None
    user: str | None = None
    closed: bool | None = None
    disagreement: bool | None = None
    lost_run: int | None = None
    watched_on: tuple[str, ...] | None = None
    job_id: str = "{a}"


@dataclass(frozen=True)
class ExpectedNode:
    """What sinfo says of a node in the end: whether drained, and a word of its reason."""

    node: str
    drained: bool
    reason: str = ""


@dataclass(frozen=True)
class ExpectedText:
    """Standard output and error of a command."""

    command: str
    contains: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    status: int | None = 0
    node: str = ""  # where it runs; beside the ledger where it is empty


Expected = ExpectedJob | ExpectedNode | ExpectedText


@dataclass(frozen=True)
class Situation:
    """Beyond ``expected`` the ledger has no record of the jobs, under whatever id.

    Attributes:
        exclusive: no other situation runs in the lab meanwhile, though no daemon is disturbed.
        conf: further lines of slurm.conf: the situation needs a lab of its own.
    """

    name: str
    why: str
    script: tuple[Action, ...]
    expected: tuple[Expected, ...]
    exclusive: bool = False
    conf: str = ""

    @property
    def verbs(self) -> frozenset[str]:
        """Names of its actions."""
        return frozenset(action.verb for action in self.script)

    @property
    def is_alone(self) -> bool:
        """Whether it has the lab to itself: reports too, for a node keeps twenty ended jobs."""
        commands = [getattr(each, "command", "") for each in self.expected]
        return (
            self.exclusive
            or bool(self.verbs & DISTURBING)
            or any("{lockstep} report" in command for command in commands)
        )

    @property
    def has_pages(self) -> bool:
        """Whether its jobs are watched by pages."""
        return re.search(r"\{(train|script)\}", repr(self.script)) is not None
