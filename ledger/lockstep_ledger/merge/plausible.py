"""Refusals of events that cannot be true of a job, whatever else is known of it."""

from collections.abc import Collection
from dataclasses import dataclass

from lockstep_records.events.event import Event

MAX_NODE_GPUS = 1024
"""More than any machine has, for what a machine says of itself."""
MAX_AGE_SECONDS = 400 * 86_400.0
"""How long an event may have waited on its node."""
MAX_SPARE_NODES = 1024
"""Nodes that may send events of a job beyond those that it has by its own word."""
MAX_SPANS = 100_000
"""As of 1,000 nodes that are requeued a hundred times: a record is derived from all spans."""
MAX_GPUS = 1_000_000
_STARTS = frozenset({"job_started", "attempt_started", "resources_allocated"})
# Processes begin before the event of their start is written, and a clock may be set meanwhile.
_SLACK_RATIO = 1.1
MAX_EARLY_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Refused:
    """Why an event does not fit its job: the kind of reason and one sentence."""

    refusal: str
    sentence: str


def implausible(
    event: Event, nodes: Collection[str], num_nodes: int | None, num_spans: int
) -> Refused | None:
    """Why an event cannot be true, given nodes and spans of its job; None where it may be."""
    reason = _excess(event)
    if reason is None and event.kind in _STARTS and num_spans >= MAX_SPANS:
        reason = f"is one more start than the {MAX_SPANS} that a job may have; start a new job id"
    most_nodes = MAX_SPARE_NODES + (num_nodes or 0)
    if reason is None and event.source not in nodes and len(nodes) >= most_nodes:
        reason = f"is of one more node than the {most_nodes} that the job may have; state num_nodes"
    if reason is None:
        return None
    return Refused("implausible", f"{event.kind} of job {event.job_id} {reason}")


def most_gpu_seconds(held: float, early: float) -> float:
    """GPU-seconds that may be claimed by who held some, with a slack of some before."""
    return held * _SLACK_RATIO + early


def _excess(event: Event) -> str | None:
    if event.owner is not None:
        age_seconds = event.received_seconds - event.time
        if age_seconds > MAX_AGE_SECONDS:
            return f"is {age_seconds / 86_400.0:.0f} days old; set the clock of the node"
        gpus = 0.0 if event.kind.startswith("job_") else event.number("num_gpus") or 0.0
        if gpus > MAX_NODE_GPUS:
            return f"states {gpus:.0f} GPUs of one node; {MAX_NODE_GPUS} are possible"
    if event.kind == "goodput":
        ranks = event.number("num_ranks") or event.number("num_gpus") or MAX_NODE_GPUS
        seconds, most = sum(event.numbers("rank_seconds").values()), ranks * MAX_AGE_SECONDS
        if seconds > most:
            return f"states {seconds:.6g} rank_seconds; {ranks:.0f} ranks can have {most:.6g}"
    lost = event.number("lost_gpu_seconds") or 0.0
    if lost > MAX_GPUS * MAX_AGE_SECONDS:
        return f"states {lost:.6g} lost_gpu_seconds; no job has so many"
    return None
