"""When the outcome of a job is settled, and what is counted then, once for each job."""

from dataclasses import dataclass

from lockstep_catalogue import ledger as counted
from lockstep_ledger.merge import accounting
from lockstep_ledger.merge.effects import Effects
from lockstep_ledger.merge.event import LedgerEvent
from lockstep_ledger.merge.job import Job, NodeRun
from lockstep_ledger.merge.outcome import (
    MergedOutcome,
    merge_outcomes,
    silent_nodes,
    with_node_signs,
)

MAX_RANK = 1 << 31


@dataclass(frozen=True, kw_only=True, slots=True)
class SettleTimeouts:
    """How long the ledger waits, by its own clock.

    Attributes:
        node_seconds: for the ends of the other nodes, after an end of one.
        requeue_seconds: for a start after a preemption, before it is the job's outcome.
    """

    node_seconds: float = 600.0
    requeue_seconds: float = 86_400.0


def end_node(
    job: Job, node: NodeRun, event: LedgerEvent, effects: Effects, outcome: str = ""
) -> None:
    """Ends a node's part of a run and counts the GPU time that no totals have covered."""
    if node.end is not None:
        return
    node.end = event.time_seconds
    node.outcome = outcome or event.text("outcome") or "unknown"
    node.failure_class = event.text("failure_class") or None
    node.cause = event.text("cause") or None
    reason = event.fields.get("reason")
    node.reason = reason[:500] if isinstance(reason, str) else None
    node.culprit_node = event.text("culprit_node") or None
    ranks = event.fields.get("culprit_ranks")
    first = ranks[0] if isinstance(ranks, list) and ranks else None
    node.rank = first if type(first) is int and abs(first) < MAX_RANK else None
    accounting.close_node(job, event.node, node, effects)


def settle(
    job: Job,
    event: LedgerEvent,
    effects: Effects,
    timeouts: SettleTimeouts,
    *,
    is_final: bool = False,
) -> None:
    """Settles the job when every node has ended; else sets the time until which it waits."""
    silent = silent_nodes(job.run, job.expected_nodes)
    if silent.count and not is_final:
        if job.settle_at is None:
            job.settle_at = event.received_seconds + timeouts.node_seconds
        return
    merged = with_node_signs(merge_outcomes(job.run, silent), job.run)
    _take(job, merged, silent.names)
    job.ended = job.run.end if job.run.end is not None else event.time_seconds
    if merged.outcome == "preempted" and not is_final:
        job.status = "ended"
        job.settle_at = event.received_seconds + timeouts.requeue_seconds
        return
    job.status, job.settle_at = "finished", None
    if not job.counted:
        job.counted = True
        _count(job, effects)


def _take(job: Job, merged: MergedOutcome, silent: list[str]) -> None:
    job.outcome, job.failure_class = merged.outcome, merged.failure_class
    job.cause, job.reason = merged.cause, merged.reason
    job.culprit_node, job.culprit_rank = merged.node, merged.rank
    # A failure that nobody could class counts against the cluster until somebody does.
    if merged.outcome in {"failed", "unknown"} and merged.failure_class is None:
        job.failure_class = "unknown"
    job.silent_nodes = silent


def _count(job: Job, effects: Effects) -> None:
    outcome, failure_class = job.outcome or "unknown", job.failure_class or "none"
    labels = (*job.group, outcome, failure_class)
    effects.add(counted.JOBS_FINISHED, labels)
    effects.add(counted.JOBS_FINISHED_GPU_SECONDS, labels, job.gpu_seconds)
    end = job.ended or 0.0
    if job.started is not None:
        effects.observe(counted.JOB_DURATION, job.group, max(0.0, end - job.started))
    # Cancelled jobs and those that their owners broke say nothing of the cluster.
    if outcome != "cancelled" and failure_class != "user":
        is_good = outcome == "succeeded"
        effects.count(job, "job_success", end, float(is_good), 1.0)
        good_seconds = job.gpu_seconds if is_good else 0.0
        effects.count(job, "job_success_gpu_seconds", end, good_seconds, job.gpu_seconds)
    if job.deadline is not None and outcome != "cancelled":
        is_met = outcome == "succeeded" and end <= job.deadline
        effects.add(counted.DEADLINES, (*job.group, "met" if is_met else "missed"))
        effects.count(job, "time_to_complete", end, float(is_met), 1.0)
