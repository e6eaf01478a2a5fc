"""A situation: actions on a real Slurm, and the words of ledger, pages and nodes after them.

They lie in ``situations.yaml``: an action is a verb (a method of ``Turn``) with its arguments,
what is expected is the fields of a ``job``, a ``node`` or a ``text``. Jobs have names of the
situation's own (``a``, ``victim``). In texts, the runner puts in:

- ``{a}`` the id that Slurm gave the job
- ``{train}`` the command of ``train.py`` of this folder, ``{script}`` its path
- ``{lockstep}`` the command; ``{deploy}`` what ``lockstep deploy slurm --to`` has written
- ``{n1}``, ``{n2}`` the nodes; ``{port}`` a free port; ``{out}`` a path of the situation's own
- ``{gpu_map}`` the folder of the map
- ``{logind_clean_ipc}`` logind's clean-up, given a user
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

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


DISTURBING = frozenset({"stop", "start", "crash", "on_node", "feed"})
"""Actions on daemons and nodes that every job of the lab would feel."""


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
_EXPECTED = {"job": ExpectedJob, "node": ExpectedNode, "text": ExpectedText}


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
        return re.search(r"\{(train|script)\}", repr(self.script)) is not None


def _read(entry: dict[str, Any]) -> Situation:
    script = tuple(Action(verb, tuple(arguments)) for verb, *arguments in entry.pop("script"))
    expected: tuple[Expected, ...] = tuple(
        msgspec.convert(fields, _EXPECTED[kind])
        for each in entry.pop("expected")
        for kind, fields in each.items()
    )
    return Situation(**entry, script=script, expected=expected)


SITUATIONS = tuple(
    map(
        _read,
        yaml.load(Path(__file__).with_name("situations.yaml").read_text("utf-8"), yaml.CSafeLoader),
    )
)
