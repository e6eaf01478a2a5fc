"""Tables of the merge: which source decides a field, and the order in which events count.

========================================== ===================== =====================
field                                      first                 then
========================================== ===================== =====================
time and state on a node                   launcher, agent       scheduler
allocation, queue, project, user, class,   scheduler's newest    launchers' first
name, model, number of nodes and GPUs
submission, requeue                        scheduler             launcher
outcome, class, cause, ranks              evidence of the nodes scheduler, as below
========================================== ===================== =====================
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from lockstep_records.events.event import Event

SCHEDULER = ""
"""The node of a scheduler's word on the whole job."""
PAGES_SOURCE = "pages"
"""Source of an end that an agent takes from the pages of ranks, whose launcher says nothing."""
SETTLED = "ledger_settled"
"""The ledger's own event: the wait for missing ends of a run is over."""
_FIRST_KINDS = ("job_submitted", "resources_allocated", "job_started", "attempt_started")
_LAST_KINDS = (
    "attempt_ended", "job_preempted", "resources_released", "job_finished", "job_requeued", SETTLED,
)  # fmt: skip
_RANKS = {kind: rank for rank, kind in enumerate(_FIRST_KINDS)} | {
    kind: rank + len(_FIRST_KINDS) + 1 for rank, kind in enumerate(_LAST_KINDS)
}
TEXTS = ("name", "user", "queue", "project", "job_class", "gpu_model", "currency")
NUMBERS = (
    "num_nodes", "num_gpus", "world_size", "price_per_gpu_hour", "deadline_time", "declared_tokens",
    "eligible_time",
)  # fmt: skip
"""What ``job_submitted`` and ``job_started`` state of the whole job."""
RUN_FIELDS = frozenset({"num_nodes", "num_gpus", "gpu_model", "eligible_time"})
"""Words that may be others in each run, and at each time of it."""
COMPARED = (*TEXTS[:6], "num_nodes", "num_gpus")
"""Words that are kept as disagreements where scheduler and launchers differ."""
CONSEQUENCES = frozenset({"peer_failure", "collective_timeout"})
"""Causes of ends that another node caused: they decide only when no other end exists."""
NAMED_CLASSES = frozenset({"infra", "user"})
STRONG_OUTCOMES = frozenset({"time_limit", "cancelled", "preempted"})
"""Ends of a scheduler that decide where its bare failure does not.

============================================ =======================================================
end of the nodes                             words of the scheduler that decide over it
============================================ =======================================================
unknown, as stated or for silence            every one but unknown
failure without a named class, preempted     time limit, cancelled, preempted, failure with a class
cancelled: launchers see only the signal     time limit, preempted, failure with a class
no failure, and only implied by pages        every one but a success and unknown
any other                                    none
============================================ =======================================================
"""


def rank_of(kind: str) -> int:
    """Place of a kind among events of one time and attempt: starts, all others, ends."""
    return _RANKS.get(kind, len(_FIRST_KINDS))


Order = tuple[float, int, int, str]
"""Time, attempt, rank of the kind, and id: by it events are placed, whatever order they come in."""
_encode = msgspec.json.Encoder().encode


def order_of(event: Event) -> Order:
    """Its place among all events."""
    return event.time, event.attempt, rank_of(event.kind), event.id


def body_of(event: Event) -> str:
    """What the columns of the store do not hold, as JSON."""
    launcher = {} if event.launcher is None else {"launcher": event.launcher}
    owner = {} if event.owner is None else {"owner": event.owner}
    return _encode({"fields": event.fields, **launcher, **owner, **event.extra}).decode()


def machine_of(source: str, body: Mapping[str, Any]) -> str:
    """The node of a stored event, without the launcher that its body names."""
    launcher = body.get("launcher")
    return source.removesuffix(f"/{launcher}") if launcher else source
