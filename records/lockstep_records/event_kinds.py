"""The kinds of events and their fields: one table, from which schema, check and docs are made.

A kind that is not in the table is valid too: a reader passes it on unharmed.
"""

from dataclasses import dataclass
from typing import Literal

from lockstep_catalogue.vocabulary import FAILURE_CLASSES, GOODPUT_STATES, OUTCOMES

VERSION = 1
"""Version of an event; it rises when an old reader would misread a new event."""

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
        nullable: whether null stands for unknown; an optional field may also be absent.
    """

    name: str
    shape: Shape
    meaning: str
    values: tuple[str, ...] = ()
    required: bool = False
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class EventKind:
    """A kind of event.

    Attributes:
        edge: whether it begins or ends a job or an attempt; such events stay longest in a spool.
    """

    name: str
    meaning: str
    fields: tuple[EventField, ...]
    edge: bool = False


_F = EventField
_DESCRIPTION = (
    _F("name", "text", "name that people gave the job"),
    _F("user", "text", "who submitted it"),
    _F("job_class", "text", "class of the job, such as pretraining, research or debug"),
    _F("queue", "text", "queue or partition"),
    _F("project", "text", "account that pays"),
    _F("num_nodes", "integer", "nodes that the job asked for"),
    _F("world_size", "integer", "ranks of the whole job"),
    _F("num_gpus", "integer", "GPUs allocated to the whole job"),
    _F("gpu_model", "text", "model of the GPUs, as the driver names it"),
    _F("time_limit_seconds", "number", "wall clock that the scheduler allows"),
    _F("deadline_time", "number", "when it has to be done, seconds since 1970"),
    _F("declared_tokens", "integer", "tokens that it is to be trained on"),
    _F("price_per_gpu_hour", "number", "price of one GPU for one hour"),
    _F("currency", "text", "ISO 4217 code of the price"),
    _F("source", "text", "what the event was taken from: lockstep, slurm, kubernetes, mlperf"),
)
_END = (
    _F(
        "outcome", "text", "what became of it on this node", OUTCOMES, required=True, nullable=False
    ),
    _F("exit_code", "integer", "exit status of the launcher"),
    _F("failure_class", "text", "who has to act; absent unless it failed", FAILURE_CLASSES),
    _F("cause", "text", "name of the rule of the outcome table"),
    _F("reason", "text", "one sentence"),
    _F("culprit_ranks", "integers", "ranks to blame; empty where none is"),
    _F("culprit_node", "text", "node to blame"),
    _F("last_step", "integer", "highest step completed"),
    _F("exception", "text", "what ended the rank to blame: type, message and place"),
    _F("signal", "text", "signal that ended the rank to blame"),
    _F("followers", "integers", "ranks that failed because another one had"),
    _F("tokens", "integer", "tokens trained on"),
)

EVENT_KINDS: tuple[EventKind, ...] = (
    EventKind("job_submitted", "A scheduler took the job into its queue.", _DESCRIPTION, edge=True),
    EventKind(
        "job_started",
        "The launcher of a node begins; each node of the job writes its own.",
        (*_DESCRIPTION, _F("nproc_per_node", "integer", "ranks of this node")),
        edge=True,
    ),
    EventKind(
        "attempt_started",
        "The ranks of a node start.",
        (
            _F("ranks", "integers", "global ranks on this node"),
            _F("num_gpus", "integer", "GPUs of this node that are allocated to the job"),
            _F("restart_count", "integer", "how often the scheduler had requeued the job"),
        ),
        edge=True,
    ),
    EventKind(
        "hang",
        "No rank of the node makes progress.",
        (
            _F("ranks", "objects", "rank, phase and step of each"),
            _F("missing", "integers", "ranks that the others wait for"),
            _F("limit_seconds", "number", "time without progress from which on it is a hang"),
            _F("flight_recorders", "integers", "ranks whose Flight Recorder was fetched"),
        ),
    ),
    EventKind(
        "hang_ended",
        "The ranks of the node make progress again after a hang.",
        (
            _F("missing", "integers", "ranks that the others had waited for"),
            _F("seconds", "number", "time without progress"),
        ),
    ),
    EventKind(
        "job_resumed",
        "The ranks continue from a checkpoint.",
        (
            _F("step", "integer", "step that was restored; 0 for a fresh start", required=True),
            _F("fallback", "flag", "whether a newer or the requested one was passed over"),
            _F("passed_over", "integer", "newer checkpoints that were not valid"),
            _F("steps_lost", "integer", "steps completed before that have to be done again"),
            _F("seconds", "number", "duration of the restore"),
        ),
    ),
    EventKind(
        "checkpoint_durable",
        "A checkpoint is complete and can be resumed from.",
        (
            _F("step", "integer", "its step"),
            _F("size_bytes", "integer", "bytes that this rank wrote"),
            _F("seconds", "number", "duration of the write"),
            _F("blocking_seconds", "number", "how long steps waited for it"),
            _F("verified", "flag", "whether it was read back and compared"),
        ),
    ),
    EventKind(
        "checkpoint_failed",
        "Checkpoints of the attempt were not written, or are damaged.",
        (
            _F("total", "integer", "number so far in this attempt", required=True, nullable=False),
            _F("outcome", "text", "what became of them", ("failed", "invalid"), required=True,
               nullable=False),
        ),
    ),
    EventKind(
        "restore_failed",
        "The ranks could not load a checkpoint.",
        (_F("total", "integer", "number so far in this attempt", required=True, nullable=False),),
    ),
    EventKind(
        "goodput",
        "Totals of an attempt on this node so far; the newest replaces those before it.",
        (
            _F("rank_seconds", "numbers_by_name", "seconds of its ranks by state", GOODPUT_STATES,
               required=True, nullable=False),
            _F("num_gpus", "integer", "GPUs of this node that are allocated to the job"),
            _F("num_ranks", "integer", "ranks and idle GPUs that the totals cover"),
            _F("last_step", "integer", "highest step completed"),
            _F("tokens", "integer", "tokens that the ranks of this node trained on"),
        ),
    ),
    EventKind(
        "node_event",
        "Something befell a node of the job: an Xid, a lost node, a link that went down.",
        (
            _F("sign", "text", "a name of the outcome table, such as node_lost", required=True),
            _F("detail", "text", "what the source wrote"),
            _F("ranks", "integers", "ranks that it hit, where known"),
        ),
    ),
    EventKind(
        "rank_ended",
        "The process of a rank ended.",
        (
            _F("rank", "integer", "global rank", required=True),
            _F("pid", "integer", "process id on its node"),
            _F("exit_code", "integer", "exit status; negative for a signal"),
            _F("signal", "text", "name of the signal"),
            _F("first", "flag", "whether it failed before all others of this node"),
            _F("exception", "text", "type and message of what ended it"),
        ),
    ),
    EventKind("attempt_ended", "The ranks of a node have ended.", _END, edge=True),
    EventKind(
        "job_preempted",
        "The job had to give way.",
        (
            _F("by", "text", "who or what took its place"),
            _F("reason", "text", "what the scheduler said"),
            _F("lost_gpu_seconds", "number", "work since the newest checkpoint that is lost"),
        ),
        edge=True,
    ),
    EventKind(
        "job_requeued",
        "The job waits in the queue again, under the same id.",
        (
            _F("reason", "text", "what the scheduler said"),
            _F("restart_count", "integer", "how often it was requeued, with this time"),
        ),
        edge=True,
    ),
    EventKind("job_finished", "The launcher of a node is done.", _END, edge=True),
)  # fmt: skip
KIND_BY_NAME = {kind.name: kind for kind in EVENT_KINDS}
KINDS = tuple(KIND_BY_NAME)
EDGE_KINDS = frozenset(kind.name for kind in EVENT_KINDS if kind.edge)
