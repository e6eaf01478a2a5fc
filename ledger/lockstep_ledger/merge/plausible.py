"""What the GPUs of a job can have done in its time; an event that says more is refused."""

from dataclasses import dataclass

from lockstep_ledger.merge.event import LedgerEvent
from lockstep_ledger.merge.job import Job, NodeRun

MAX_GPUS_OF_NODE = 1024
"""More than any machine has, for what a machine says of itself."""
MAX_AGE_SECONDS = 400 * 86_400.0
"""How long an event may have waited on its node."""
MAX_SPARE_NODES = 1024
"""Nodes that may send events of a job beyond those that it has by its own word."""
# Processes begin before the event of their start is written, and a clock may be set meanwhile.
_SLACK_RATIO, _SLACK_SECONDS = 1.1, 120.0


@dataclass(frozen=True, slots=True)
class Refused:
    """Why an event does not fit its job: the kind of reason and one sentence."""

    refusal: str
    sentence: str


def implausible(job: Job, event: LedgerEvent) -> Refused | None:
    """Why an event cannot be true of this job; None where it may be."""
    reason = _excess(job, event)
    if reason is None:
        return None
    return Refused("implausible", f"{event.kind} of job {job.job_id} {reason}")


def most_gpu_seconds(job: Job, node: NodeRun, time_seconds: float) -> float:
    """GPU-seconds that the GPUs of a node can have had until a time, with a slack."""
    begin = max(job.run.begin if node.start is None else node.start, node.floor)
    return (node.gpus or 1.0) * _most_seconds(begin, time_seconds)


def _excess(job: Job, event: LedgerEvent) -> str | None:
    if event.owner is not None:
        age_seconds = event.received_seconds - event.time_seconds
        if age_seconds > MAX_AGE_SECONDS:
            return f"is {age_seconds / 86_400.0:.0f} days old; set the clock of the node"
        gpus = 0.0 if event.kind.startswith("job_") else event.number("num_gpus") or 0.0
        if gpus > MAX_GPUS_OF_NODE:
            return f"states {gpus:.0f} GPUs of one node; {MAX_GPUS_OF_NODE} are possible"
    most_nodes = MAX_SPARE_NODES + (job.expected_nodes or 0)
    if event.node not in job.run.nodes and len(job.run.nodes) >= most_nodes:
        return f"is of one more node than the {most_nodes} that the job may have; state num_nodes"
    if event.kind == "goodput":
        return _excess_of_goodput(job, event)
    return _excess_of_loss(job, event)


def _excess_of_goodput(job: Job, event: LedgerEvent) -> str | None:
    node = job.run.nodes.get(event.node)
    if node is None or node.end is not None:
        return None  # it counts for nothing
    ranks = event.number("num_ranks") or event.number("num_gpus") or node.gpus
    ranks = ranks or job.world_size or MAX_GPUS_OF_NODE
    seconds = sum(event.numbers("rank_seconds").values())
    begin = job.run.begin if node.start is None else node.start
    most = ranks * _most_seconds(begin, event.time_seconds)
    if seconds <= most:
        return None
    return f"states {seconds:.6g} rank_seconds; {ranks:.0f} ranks had {most:.6g} at most"


def _excess_of_loss(job: Job, event: LedgerEvent) -> str | None:
    lost = event.number("lost_gpu_seconds")
    if lost is None:
        return None
    gpus = job.gpus or sum(node.gpus or 0.0 for node in job.run.nodes.values())
    begin = event.time_seconds if job.started is None else job.started
    most = (gpus or job.world_size or MAX_GPUS_OF_NODE) * _most_seconds(begin, event.time_seconds)
    if lost <= most:
        return None
    return f"states {lost:.6g} lost_gpu_seconds; the job had {most:.6g} at most"


def _most_seconds(begin: float, end: float) -> float:
    return max(0.0, end - begin) * _SLACK_RATIO + _SLACK_SECONDS
