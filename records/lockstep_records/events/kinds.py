"""The kinds of events and their fields: one table, from which schema, check and docs are made.

A kind that is not in the table is valid too: a reader passes it on unharmed.
"""

from dataclasses import dataclass
from typing import Literal

from lockstep_catalogue.vocabulary import FAILURE_CLASSES, GOODPUT_STATES, OUTCOMES

VERSION = 1
"""Version of an event; it rises when an old reader would misread a new event."""

MAX_TEXT = 4096
"""Characters of a text, a line's feeds and tabs among them."""
MAX_NAME = 200
MAX_ITEMS = 10_000
"""Entries of a list or of an object."""
MAX_WHOLE = 2**53
"""From here on a whole number is none in a program that knows only floats."""
MAX_NUMBER = 1e15
"""Bound of a number that has no bound of its own."""
# Above all clusters that are known; what an event may let the ledger count or list depends on them.
_MAX_NODES, _MAX_RANKS, _MAX_RANKS_OF_NODE = 100_000, 1_000_000, 4096
_MAX_SECONDS, _MAX_PRICE, _MAX_REPEATS = 10 * 365 * 86_400, 1_000_000, 1_000_000
_MAX_STATUS = 2**32
LAST_TIME = 253_402_300_799
"""The last second of the year 9999; a later time is invalid."""
OWN_PREFIX = "ledger_"
"""Kinds of this name are the ledger's own; nobody else may send one."""

Shape = Literal[
    "text", "integer", "number", "flag", "integers", "texts", "numbers_by_name", "objects", "object"
]


@dataclass(frozen=True, slots=True)
class EventField:
    """A field of an event.

    Attributes:
        shape: JSON type; ``numbers_by_name`` is an object of numbers, ``objects`` a list.
        values: the only texts allowed, or the only names; any where empty.
        required: whether an event of the kind without it is refused.
        nullable: whether null means unknown; an optional field may also be absent.
        least, most: range of its numbers; None is the range of all numbers of events.
    """

    name: str
    shape: Shape
    meaning: str
    values: tuple[str, ...] = ()
    required: bool = False
    nullable: bool = True
    least: int | None = None
    most: int | None = None

    @property
    def range(self) -> tuple[float, float]:
        """The least and the highest number."""
        limit = MAX_NUMBER if self.shape in {"number", "numbers_by_name"} else MAX_WHOLE
        least = 0.0 if self.shape == "numbers_by_name" else -limit
        return (
            least if self.least is None else self.least,
            limit if self.most is None else self.most,
        )


@dataclass(frozen=True, slots=True)
class EventKind:
    """A kind of event; one of an ``edge``, of a job or an attempt, stays longest in a spool."""

    name: str
    meaning: str
    fields: tuple[EventField, ...]
    edge: bool = False


_F = EventField


def _count(
    name: str, meaning: str, most: int = MAX_WHOLE, *, required: bool = False, nullable: bool = True
) -> EventField:
    return EventField(
        name, "integer", meaning, required=required, nullable=nullable, least=0, most=most
    )


def _step(name: str, meaning: str, *, required: bool = False) -> EventField:
    return EventField(name, "integer", meaning, required=required, least=-1)


def _ranks(name: str, meaning: str) -> EventField:
    return EventField(name, "integers", meaning, least=0, most=_MAX_RANKS)


def _seconds(name: str, meaning: str) -> EventField:
    # A clock that was set back makes a duration negative.
    return EventField(name, "number", meaning, least=-_MAX_SECONDS, most=_MAX_SECONDS)


_DISAGREES = _F("disagrees", "object", "fields of which the source says another value as well")
_NODES = _F("nodes", "texts", "a scheduler's names of its nodes, as Slurm lists them: n[1-3,7]")
_DESCRIPTION = (
    _F("name", "text", "name that people gave the job"),
    _F("user", "text", "who submitted it"),
    _count("uid", "user id of who submitted it, where a scheduler knows it", 2**32 - 2),
    _F("job_class", "text", "class of the job, such as pretraining, research or debug"),
    _F("queue", "text", "queue or partition"),
    _F("project", "text", "account that pays"),
    _count("num_nodes", "nodes that the job asked for", _MAX_NODES),
    _NODES,
    _count("world_size", "ranks of the whole job", _MAX_RANKS),
    _F("num_gpus", "number", "GPUs allocated to the whole job, and shares of them", least=0,
       most=_MAX_RANKS),
    _F("gpus_source", "text", "what states num_gpus: a column of Slurm's accounting"),
    _F("gpu_model", "text", "model of the GPUs, as the driver names it"),
    _seconds("time_limit_seconds", "wall clock that the scheduler allows"),
    _F("deadline_time", "number", "when it has to be done, seconds since 1970", least=0,
       most=LAST_TIME),
    _F("eligible_time", "number", "from when on the scheduler could have started it; its owner held"
       " it before", least=0, most=LAST_TIME),
    _count("declared_tokens", "tokens that it is to be trained on"),
    _F("price_per_gpu_hour", "number", "price of one GPU for one hour", least=0, most=_MAX_PRICE),
    _F("currency", "text", "ISO 4217 code of the price"),
    _F("source", "text", "what the event was taken from: lockstep, slurm, kubernetes, mlperf"),
    _F("aliases", "texts", "other ids of the job: slurm:NAME:ID, kubernetes:UID, torchrun:ID"),
    _DISAGREES,
)  # fmt: skip
_END = (
    _F("outcome", "text", "what became of it on this node", OUTCOMES, required=True,
       nullable=False),
    _F("exit_code", "integer", "exit status of the launcher", least=-_MAX_STATUS, most=_MAX_STATUS),
    _F("source", "text", "pages where no launcher said so and only the pages of its ranks tell"),
    _F("failure_class", "text", "who has to act; absent unless it failed", FAILURE_CLASSES),
    _F("cause", "text", "name of the rule of the outcome table"),
    _F("reason", "text", "one sentence"),
    _ranks("cause_ranks", "ranks to blame; empty where none is"),
    _F("cause_node", "text", "node to blame"),
    _step("last_step", "highest step completed"),
    _F("exception", "text", "what ended the rank to blame: type, message and place"),
    _F("signal", "text", "signal that ended the rank to blame"),
    _ranks("followers", "ranks that failed because another one had"),
    _count("tokens", "tokens trained on"),
    _DISAGREES,
)  # fmt: skip

EVENT_KINDS: tuple[EventKind, ...] = (
    EventKind("job_submitted", "A scheduler took the job into its queue.", _DESCRIPTION, edge=True),
    EventKind("job_started", "The launcher of a node begins; each node of the job writes its own.",
              (*_DESCRIPTION, _count("nproc_per_node", "ranks of this node", _MAX_RANKS_OF_NODE)),
              edge=True),
    EventKind("attempt_started", "The ranks of a node start.", (
        _ranks("ranks", "global ranks on this node"),
        _count("num_gpus", "GPUs of this node that are allocated to the job", _MAX_RANKS),
        _count("restart_count", "how often the scheduler had requeued the job", _MAX_REPEATS),
    ), edge=True),
    EventKind("hang", "No rank of the node makes progress.", (
        _F("ranks", "objects", "of each: rank, phase, step, collectives launched, device"),
        _ranks("missing", "ranks that the others wait for"),
        _F("kind", "text", "how they are missing, or why nobody is"),
        _F("why", "text", "the evidence"),
        _count("world_size", "ranks of the job", _MAX_RANKS),
        _seconds("limit_seconds", "time without progress from which on it is a hang"),
        _ranks("flight_recorders", "ranks whose Flight Recorder was fetched"),
    )),
    EventKind("hang_ended", "The ranks of the node make progress again after a hang.", (
        _ranks("missing", "ranks that the others had waited for"),
        _seconds("seconds", "time without progress"),
    )),
    EventKind("job_resumed", "The ranks continue from a checkpoint.", (
        _step("step", "step that was restored; 0 for a fresh start", required=True),
        _F("fallback", "flag", "whether a newer or the requested one was passed over"),
        _count("passed_over", "newer checkpoints that were not valid", _MAX_REPEATS),
        _step("steps_lost", "steps completed before that have to be done again"),
        _seconds("seconds", "duration of the restore"),
    )),
    EventKind("checkpoint_durable", "A checkpoint is complete and can be resumed from.", (
        _step("step", "its step"),
        _count("size_bytes", "bytes that this rank wrote"),
        _seconds("seconds", "duration of the write"),
        _seconds("blocking_seconds", "how long steps waited for it"),
        _F("verified", "flag", "whether it was read back and compared"),
    )),
    EventKind("checkpoint_failed", "Checkpoints of the attempt were not written, or are damaged.", (
        _count("total", "number so far in this attempt", _MAX_REPEATS, required=True,
               nullable=False),
        _F("outcome", "text", "what became of them", ("failed", "invalid"), required=True,
           nullable=False),
    )),
    EventKind("restore_failed", "The ranks could not load a checkpoint.", (
        _count("total", "number so far in this attempt", _MAX_REPEATS, required=True,
               nullable=False),
    )),
    EventKind("goodput",
              "Totals of an attempt on this node so far; the newest replaces those before it.", (
        _F("rank_seconds", "numbers_by_name", "seconds of its ranks by state", GOODPUT_STATES,
           required=True, nullable=False),
        _count("num_gpus", "GPUs of this node that are allocated to the job", _MAX_RANKS),
        _count("num_ranks", "ranks and idle GPUs that the totals cover", _MAX_RANKS),
        _step("last_step", "highest step completed"),
        _count("tokens", "tokens that the ranks of this node trained on"),
    )),
    EventKind("node_event",
              "A node of the job had an incident: an Xid, a lost node, a link that went down.", (
        _F("sign", "text", "a name of the outcome table, such as node_lost", required=True),
        _F("detail", "text", "what the source wrote"),
        _ranks("ranks", "ranks that it hit, where known"),
    )),
    EventKind("rank_ended", "The process of a rank ended.", (
        _count("rank", "global rank", _MAX_RANKS, required=True),
        _count("pid", "process id on its node"),
        _F("exit_code", "integer", "exit status; negative for a signal", least=-_MAX_STATUS,
           most=_MAX_STATUS),
        _F("signal", "text", "name of the signal"),
        _F("first", "flag", "whether it failed before all others of this node"),
        _F("exception", "text", "type and message of what ended it"),
    )),
    EventKind("attempt_ended", "The ranks of a node have ended.", _END, edge=True),
    EventKind("job_preempted", "The scheduler took the job's resources.", (
        _F("by", "text", "who or what took its place"),
        _F("reason", "text", "the scheduler's reason"),
        _F("lost_gpu_seconds", "number", "work since the newest checkpoint that is lost",
           least=0),
    ), edge=True),
    EventKind("job_requeued", "The job waits in the queue again, under the same id.", (
        _F("reason", "text", "the scheduler's reason"),
        _count("restart_count", "how often it was requeued, with this time", _MAX_REPEATS),
    ), edge=True),
    EventKind("resources_allocated", "The scheduler gave a part of the job its GPUs.", (
        _F("part", "text", "name of the part: a pod's uid, a component", required=True,
           nullable=False),
        _count("num_gpus", "GPUs of the part", _MAX_RANKS),
        _F("gpus_source", "text", "what states num_gpus: a column of Slurm's accounting"),
        _F("gpu_model", "text", "model of the GPUs, as the driver names it"),
        _F("node", "text", "node of the part, where it has one"),
        _F("held_by", "text", "what holds it though the job's work has ended"),
        _NODES,
    ), edge=True),
    EventKind("resources_released", "The scheduler took back the GPUs of a part of the job.",
              (_F("part", "text", "name of the part", required=True, nullable=False),), edge=True),
    EventKind("job_finished", "The launcher of a node is done.", _END, edge=True),
)  # fmt: skip
KIND_BY_NAME = {kind.name: kind for kind in EVENT_KINDS}
KINDS = tuple(KIND_BY_NAME)
EDGE_KINDS = frozenset(kind.name for kind in EVENT_KINDS if kind.edge)
