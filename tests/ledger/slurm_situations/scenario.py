"""What a situation is: actions on a real Slurm, and what ledger, pages and nodes then have to say.

Jobs have names of the situation's own (``a``, ``victim``). In texts, the runner puts in:

- ``{a}`` the id that Slurm gave the job
- ``{train}`` the command of ``train.py`` of this folder, ``{script}`` its path
- ``{lockstep}`` the command; ``{deploy}`` what ``lockstep deploy slurm --to`` has written
- ``{n1}``, ``{n2}`` the nodes; ``{port}`` a free port; ``{ledger}`` host and port
- ``{out}`` a path of the situation's own, ``{empty}`` an empty folder
- ``{feed_options}`` what the runner's feed is started with; ``{gpu_map}`` the folder of the map
- ``{logind_clean_ipc}`` logind's clean-up, given a user; ``{read_accounting}`` a timed poll
"""

from dataclasses import dataclass, field
from typing import Literal, Protocol

from .accounting import AccountingRow

Outcome = Literal[
    "succeeded", "not_converged", "failed", "cancelled", "preempted", "time_limit", "unknown"
]
# An empty string is "none": the job has not failed, or no name is stored.
FailureClass = Literal["infra", "user", "unknown", ""]
Daemon = str  # slurmctld, slurmdbd, mariadbd, munged, slurmd@n1, feed, ledger


class Slurm(Protocol):
    """The lab with feed and ledger beside it; the runner of the situations implements it."""

    def submit(self, job: str, body: str, options: tuple[str, ...]) -> None:
        """Pass a batch script to sbatch; ``--requeue`` and the like stand in the options."""

    def srun(self, job: str, body: str, options: tuple[str, ...]) -> None:
        """Start srun from outside an allocation, in the background; its job gets the name."""

    def interrupt(self, job: str) -> None:
        """Send the background srun what Ctrl-C twice sends."""

    def wait(self, job: str, state: str) -> None:
        """Wait until squeue or sacct says the state; ``END`` is any state after the last run."""

    def watch(self, job: str) -> None:
        """Wait until a rank of a job trains: there is a page that was not there before."""

    def slurm(self, command: str) -> None:
        """Run one command of Slurm, such as ``scancel {a}`` or ``scontrol requeue {a}``."""

    def stop(self, daemon: Daemon) -> None:
        """Stop one daemon, the feed or the ledger, and wait for its end."""

    def start(self, daemon: Daemon) -> None:
        """Start it again, and wait until it answers."""

    def crash(self, node: str) -> None:
        """End all processes of a node at once."""

    def on_node(self, node: str, command: str) -> None:
        """Run a command on a node as root."""

    def account(self, rows: tuple[AccountingRow, ...]) -> None:
        """Write rows into Slurm's accounting, as history that nobody has seen run."""

    def accounting_sql(self, statement: str) -> None:
        """Change Slurm's accounting by a statement of SQL."""

    def feed(self, options: tuple[str, ...]) -> None:
        """Start `lockstep ledger follow slurm` anew with options; ``TZ=ZONE`` sets its zone."""

    def poll(self) -> None:
        """Wait until the feed has asked sacct once more, and the ledger has answered."""

    def pause(self, seconds: float) -> None:
        """Let a job run for so long, where its length is the situation."""


@dataclass(frozen=True)
class Action:
    """One call of ``Slurm``: its method's name and its arguments."""

    verb: str
    arguments: tuple[object, ...] = ()

    def perform(self, slurm: Slurm) -> None:
        getattr(slurm, self.verb)(*self.arguments)


def submit(job: str, body: str, *options: str) -> Action:
    return Action("submit", (job, body, options))


def srun(job: str, body: str, *options: str) -> Action:
    return Action("srun", (job, body, options))


def interrupt(job: str) -> Action:
    return Action("interrupt", (job,))


def wait(job: str, state: str = "END") -> Action:
    return Action("wait", (job, state))


def watch(job: str) -> Action:
    return Action("watch", (job,))


def slurm(command: str) -> Action:
    return Action("slurm", (command,))


def stop(daemon: Daemon) -> Action:
    return Action("stop", (daemon,))


def start(daemon: Daemon) -> Action:
    return Action("start", (daemon,))


def crash(node: str) -> Action:
    return Action("crash", (node,))


def on_node(node: str, command: str) -> Action:
    return Action("on_node", (node, command))


def account(*rows: AccountingRow) -> Action:
    return Action("account", (rows,))


def accounting_sql(statement: str) -> Action:
    return Action("accounting_sql", (statement,))


def feed(*options: str) -> Action:
    return Action("feed", (options,))


def poll() -> Action:
    return Action("poll")


def pause(seconds: float) -> Action:
    return Action("pause", (seconds,))


@dataclass(frozen=True)
class ExpectedJob:
    """One record of the ledger. None is what the issue does not decide; it is not compared."""

    job_id: str
    outcome: Outcome | None = None
    failure_class: FailureClass | None = None
    cause: str | None = None
    attempts: int | None = None  # runs of the job: 1 was never restarted, 0 never started
    # GPUs of each run. GPU-seconds are the sum over the rows of `sacct -X -D` of GPUs
    # times (End - Start); a row that
    # has no node never ran. A figure is the sum itself, where the rows are written by the
    # situation.
    gpu_seconds: tuple[int, ...] | float | None = None
    # "first_start": Start of the first run less its Submit, in sacct. "absent": never
    # started, so there is none.
    queue_wait_seconds: Literal["first_start", "absent"] | float | None = None
    queue: str | None = None
    project: str | None = None
    user: str | None = None
    job_class: str | None = None
    name: str | None = None
    closed: bool | None = None
    disagreement: bool | None = (
        None  # whether the record tells that Slurm and Lockstep do not agree
    )
    # Run (from 0) whose work since its last checkpoint is lost: above 0, at most the GPU-
    # seconds of that run.
    lost_run: int | None = None
    # Nodes where a page of the job lies, or lay, under this id; with them events, report
    # and metrics have the id too.
    watched_on: tuple[str, ...] | None = None


@dataclass(frozen=True)
class ExpectedAbsence:
    """The ledger has no record of this id."""

    job_id: str


@dataclass(frozen=True)
class ExpectedNode:
    """What sinfo says of a node in the end: whether drained, and a word of its reason."""

    node: str
    drained: bool
    reason: str = ""


@dataclass(frozen=True)
class ExpectedText:
    """Standard output and error of a command; a command that is empty is the feed's own log."""

    command: str
    contains: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    status: int | None = 0
    node: str = ""  # where it runs; beside the ledger where it is empty


Expected = ExpectedJob | ExpectedAbsence | ExpectedNode | ExpectedText


@dataclass(frozen=True)
class Situation:
    """Beyond ``expected`` the ledger has no record of the jobs, under whatever id."""

    name: str
    why: str
    script: tuple[Action, ...]
    expected: tuple[Expected, ...]
    sentences: tuple[str, ...] = field(default=())  # keys of sentences.SENTENCES
    # Stops daemons, crashes or drains nodes: no other situation runs in the lab meanwhile.
    exclusive: bool = False
    conf: str = ""  # further lines of slurm.conf: the situation needs a lab of its own
    cgroup: bool = False  # needs a lab whose jobs are limited by cgroups
