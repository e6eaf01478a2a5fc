"""Applies an event to the record of its job; the same events in the same order give the same.

The status of a job after an event, by the status before it. ``new`` is ``pending`` before the first
start, ``pending`` waits for a start after a requeue, ``ended`` waits for one after a preemption; -
leaves the status.

=============== ======= ======= ======= ======= ========
event           new     pending running ended   finished
=============== ======= ======= ======= ======= ========
job_submitted   -       -       -       pending pending
job_started     running running running running running
attempt_started running running -       -       running
job_requeued    -       -       pending pending pending
job_finished    settle  settle  settle  settle  -
ledger_settled  settle  settle  settle  settle  refused
any other       -       -       -       -       refused
=============== ======= ======= ======= ======= ========

- A start counts when it begins another run (``_is_next_run``); a late start of a known run adds its
  node to that run. From ``running`` and ``ended`` the requeue is counted first. A job's first
  submission only sets its time.
- ``settle`` gives ``finished``, or ``ended`` after a preemption. While nodes lack their end the
  status stays, until ``ledger_settled`` gives ``finished`` in any case.
- A finished job takes only restarts later than its end, the scheduler's ``job_finished``, and
  ``node_event``, which changes nothing then.
"""

from collections.abc import Callable

from lockstep_catalogue import ledger as counted
from lockstep_catalogue import limits
from lockstep_ledger.merge import accounting, checkpoints
from lockstep_ledger.merge.effects import Effects
from lockstep_ledger.merge.event import LedgerEvent
from lockstep_ledger.merge.job import SCHEDULER, Job, NodeRun, NodeSign, Run
from lockstep_ledger.merge.plausible import Refused, implausible
from lockstep_ledger.merge.settlement import MAX_RANK, SettleTimeouts, end_node, settle

SETTLED = "ledger_settled"
"""The ledger's own event: the wait for missing ends is over. It is stored with the others, so that
a recount of the store gives the same counters."""
_MAX_SIGNS, _MAX_DETAIL, _MAX_SIGN_RANKS = 20, 300, 256
_RESTARTS = frozenset({"job_submitted", "job_started", "job_requeued", "attempt_started"})


def apply_event(
    job: Job, event: LedgerEvent, effects: Effects, timeouts: SettleTimeouts
) -> Refused | None:
    """Changes the record and adds to the effects; a refused event changes nothing."""
    refused = _refuse_other_owner(job, event) or implausible(job, event)
    if refused is None and job.status == "finished":
        refused = _refuse_after_end(job, event)
    if refused is not None:
        return refused
    job.owner = event.owner if job.owner is None else job.owner
    job.updated = max(job.updated, event.time_seconds)
    if event.kind == SETTLED:
        settle(job, event, effects, timeouts, is_final=True)
    elif event.kind == "job_finished":
        _finished(job, event, effects, timeouts)
    elif event.kind in _HANDLERS:
        _HANDLERS[event.kind](job, event, effects)
    return None


def _refuse_other_owner(job: Job, event: LedgerEvent) -> Refused | None:
    """Who sent the first event of a job from a node owns it; others may not speak of it."""
    if event.owner is None or job.owner is None or event.owner == job.owner:
        return None
    return Refused(
        "owner",
        f"job {job.job_id} of cluster {job.cluster} is of user {job.owner}, and {event.kind} of"
        f" {event.node} is of user {event.owner}; choose an id that nobody has",
    )


def _refuse_after_end(job: Job, event: LedgerEvent) -> Refused | None:
    """A finished job takes a restart, the scheduler's word, and kinds that change nothing."""
    if event.kind == "node_event":  # kept in the timeline; what came later ended nothing
        return None
    is_later = job.ended is None or event.time_seconds > job.ended
    is_handled = event.kind in _HANDLERS or event.kind in {SETTLED, "job_finished"}
    if not is_handled or (event.kind in _RESTARTS and is_later):
        return None
    if event.node == SCHEDULER and event.kind == "job_finished":
        return None
    source = event.node or "the scheduler"
    return Refused(
        "finished",
        f"job {job.job_id} has ended as {job.outcome}, and {event.kind} of {source} belongs before"
        " its end; only a later start opens it again",
    )


def _describe(job: Job, event: LedgerEvent) -> None:
    """Copies the fields of an event that describe the whole job; the first value of each holds."""
    job.project = job.project or event.text("project")
    job.queue = job.queue or event.text("queue")
    job.job_class = job.job_class or event.text("job_class")
    job.user = job.user or event.text("user")
    job.name = job.name or event.text("name")
    job.gpu_model = job.gpu_model or event.text("gpu_model")
    job.currency = job.currency or event.text("currency")
    job.world_size = job.world_size or event.count("world_size")
    job.expected_nodes = event.count("num_nodes") or job.expected_nodes
    job.gpus = event.number("num_gpus") or job.gpus
    job.deadline = event.number("deadline_time") or job.deadline
    job.declared_tokens = event.number("declared_tokens") or job.declared_tokens
    if job.price_per_gpu_hour is None:
        job.price_per_gpu_hour = event.number("price_per_gpu_hour")


def _submitted(job: Job, event: LedgerEvent, effects: Effects) -> None:
    _describe(job, event)
    effects.declare(job.group)
    if job.submitted is None:
        job.submitted = event.time_seconds
    elif job.run_number and job.status != "running":
        _requeue(job, effects, event)


def _requeued(job: Job, event: LedgerEvent, effects: Effects) -> None:
    """A scheduler's word; the node that starts again says the same without it."""
    if job.run_number == 0:
        return
    if job.status == "running":  # the launchers were killed and could not report an end
        for node in job.run.nodes.values():
            if node.end is None:
                end_node(job, node, event, effects, outcome="preempted")
        job.status = "ended"
    _requeue(job, effects, event)


def _requeue(job: Job, effects: Effects, event: LedgerEvent) -> None:
    """Counts a requeue and lets the job wait; its outcome is open again."""
    if job.status == "pending":
        return
    reason = job.failure_class if job.failure_class in {"infra", "user"} else "unknown"
    if job.outcome == "preempted":
        reason = "preemption"
    job.requeues += 1
    effects.add(counted.REQUEUES, (*job.group, reason))
    if reason != "user":  # take back the good count that attempt_started gave
        effects.count(job, "requeue", event.time_seconds, -1.0, 0.0)
    job.status, job.settle_at = "pending", None
    job.outcome = job.failure_class = job.cause = job.reason = None
    job.culprit_rank, job.culprit_node = None, None
    job.silent_nodes = []


def _started(job: Job, event: LedgerEvent, effects: Effects) -> None:
    _describe(job, event)
    effects.declare(job.group)
    if job.run_number == 0:
        _begin_run(job, event)
        job.started = event.time_seconds
        effects.add(counted.JOBS_STARTED, job.group)
        if job.submitted is not None:
            waited = max(0.0, event.time_seconds - job.submitted)
            effects.observe(counted.QUEUE_WAIT, job.group, waited)
            _judge_wait(job, waited, event.time_seconds, effects)
    elif not _is_of_previous(job, event) and _is_next_run(job, event):
        if job.status == "running":  # killed before it could report: its outcome is unknown
            job.outcome = None
            job.status = "ended"
        _requeue(job, effects, event)
        _begin_run(job, event)
    run = job.previous if _is_of_previous(job, event) else job.run
    node = run.node(event.node)
    node.start = event.time_seconds if node.start is None else min(node.start, event.time_seconds)
    node.gpus = node.gpus if node.gpus is not None else _gpus_of_start(job, event)


def _judge_wait(job: Job, waited: float, time_seconds: float, effects: Effects) -> None:
    """Counts a wait against the target of the job's size; a job that names no size has none."""
    size = job.gpus or job.world_size
    if size:
        target = next(seconds for most, seconds in limits.QUEUE_WAIT_TARGETS if size <= most)
        effects.count(job, "queue_wait", time_seconds, float(waited <= target), 1.0)


def _is_of_previous(job: Job, event: LedgerEvent) -> bool:
    """Whether a start came late: it is of the run before the newest.

    Nodes deliver independently, so a node's first start can come after the second of another.
    """
    if job.run_number <= 1 or event.attempt > job.run.first_attempt:
        return False
    age = abs(event.time_seconds - job.run.begin)
    return event.attempt < job.run.first_attempt or (
        abs(event.time_seconds - job.previous.begin) < age and event.time_seconds < job.run.begin
    )


def _gpus_of_start(job: Job, event: LedgerEvent) -> float | None:
    """GPUs of the node that starts; for a scheduler those of the whole job."""
    if event.node == SCHEDULER:
        return job.gpus
    if job.gpus is not None and job.expected_nodes:
        return job.gpus / job.expected_nodes
    return event.number("nproc_per_node")


def _is_next_run(job: Job, event: LedgerEvent) -> bool:
    """Whether a start begins another run: the node started before, or the run was over."""
    if event.attempt > job.run.first_attempt and event.kind == "job_started":
        return True
    node = job.run.nodes.get(event.node)
    if node is not None:
        last = node.end if node.end is not None else node.start
        return last is not None and event.time_seconds > last
    is_over = job.status in {"ended", "finished", "pending"} and job.settle_at is None
    is_preempted = job.status == "ended" and job.outcome == "preempted"
    end = job.run.end
    return (is_over or is_preempted) and (end is None or event.time_seconds > end)


def _begin_run(job: Job, event: LedgerEvent) -> None:
    job.previous = job.run
    job.run = Run(begin=event.time_seconds, first_attempt=event.attempt, floor=job.counted_until)
    job.run_number += 1
    job.status, job.settle_at = "running", None


def _node(job: Job, event: LedgerEvent) -> NodeRun:
    """The node's part of the newest run, or of the one before where that still waits for it."""
    before = job.previous.nodes.get(event.node)
    is_waiting = event.node not in job.run.nodes and before is not None and before.end is None
    is_earlier = job.run_number > 1 and event.attempt < job.run.first_attempt
    run = job.previous if is_waiting or is_earlier else job.run
    return run.node(event.node)


def _attempt_started(job: Job, event: LedgerEvent, effects: Effects) -> None:
    if job.run_number == 0 or job.status in {"finished", "pending"}:
        _started(job, event, effects)
    node = _node(job, event)
    node.gpus = event.number("num_gpus") or node.gpus
    accounting.recovered(job, node, event, effects)
    if job.is_new("attempt", event.attempt):
        job.attempts += 1
        effects.add(counted.ATTEMPTS_STARTED, job.group)
        effects.count(job, "requeue", event.time_seconds, 1.0, 1.0)


def _attempt_ended(job: Job, event: LedgerEvent, effects: Effects) -> None:
    _node(job, event).attempt_end = event.time_seconds
    if event.fields.get("outcome") == "preempted":
        checkpoints.count_preemption(job, event, effects)


def _node_event(job: Job, event: LedgerEvent, effects: Effects) -> None:
    """Stores a node's incident: evidence when the ends of the nodes name no cause."""
    del effects
    if job.status == "finished":
        return
    ranks = event.fields.get("ranks")
    numbers = ranks if isinstance(ranks, list) else []
    sign = NodeSign(
        sign=event.text("sign"),
        node=event.node,
        time=event.time_seconds,
        detail=str(event.fields.get("detail") or "")[:_MAX_DETAIL],
        ranks=[r for r in numbers if type(r) is int and 0 <= r < MAX_RANK][:_MAX_SIGN_RANKS],
    )
    job.run.signs = [*job.run.signs, sign][-_MAX_SIGNS:]


def _finished(job: Job, event: LedgerEvent, effects: Effects, timeouts: SettleTimeouts) -> None:
    if job.status == "finished":
        return  # the scheduler's word on a job that its nodes have settled
    _describe(job, event)
    effects.declare(job.group)
    if event.fields.get("outcome") == "preempted":
        checkpoints.count_preemption(job, event, effects)
    node = _node(job, event)
    end_node(job, node, event, effects)
    if job.run.nodes.get(event.node) is node:
        settle(job, event, effects, timeouts)


_HANDLERS: dict[str, Callable[[Job, LedgerEvent, Effects], None]] = {
    "job_submitted": _submitted,
    "job_started": _started,
    "attempt_started": _attempt_started,
    "job_resumed": checkpoints.resumed,
    "restore_failed": checkpoints.restore_failed,
    "checkpoint_durable": checkpoints.checkpointed,
    "checkpoint_failed": checkpoints.checkpoint_failed,
    "goodput": accounting.goodput,
    "attempt_ended": _attempt_ended,
    "node_event": _node_event,
    "job_preempted": checkpoints.count_preemption,
    "job_requeued": _requeued,
}
