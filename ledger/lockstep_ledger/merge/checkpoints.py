"""Checkpoints, resumes and preemptions of a job, as its events report."""

from lockstep_catalogue import ledger as counted
from lockstep_catalogue import limits
from lockstep_ledger.merge.effects import Effects
from lockstep_ledger.merge.event import LedgerEvent
from lockstep_ledger.merge.job import Job

_MIN_CHECKPOINTS = 2


def resumed(job: Job, event: LedgerEvent, effects: Effects) -> None:
    """Counts that an attempt resumed, once however many nodes report it; step 0 is a new start."""
    step = event.count("step") or 0
    if step == 0 or not job.is_new("resume", event.attempt):
        return
    job.resumes += 1
    is_fallback = event.fields.get("fallback") is True
    effects.add(counted.RESUMES, (*job.group, "fallback" if is_fallback else "ok"))
    is_good = float(not is_fallback)
    effects.count(job, "resume_success", event.time_seconds, is_good, 1.0)


def checkpointed(job: Job, event: LedgerEvent, effects: Effects) -> None:
    """Counts a durable checkpoint, once for the ranks that wrote its parts."""
    step = event.count("step")
    if not job.is_new("checkpoint", event.attempt, -1.0 if step is None else step):
        return
    job.checkpoints += 1
    job.last_checkpoint, job.last_checkpoint_step = event.time_seconds, step
    effects.add(counted.CHECKPOINTS, (*job.group, "ok"))
    effects.count(job, "checkpoint_success", event.time_seconds, 1.0, 1.0)


def checkpoint_failed(job: Job, event: LedgerEvent, effects: Effects) -> None:
    """Counts checkpoints that were not written or are damaged, once for the nodes of the job."""
    outcome = "invalid" if event.text("outcome") == "invalid" else "failed"
    if number := job.growth(f"checkpoint_{outcome}", event.attempt, event.count("total") or 0):
        effects.add(counted.CHECKPOINTS, (*job.group, outcome), number)
        effects.count(job, "checkpoint_success", event.time_seconds, 0.0, number)


def restore_failed(job: Job, event: LedgerEvent, effects: Effects) -> None:
    """Counts restores that failed, once for the nodes of the job."""
    if number := job.growth("restore_failed", event.attempt, event.count("total") or 0):
        effects.add(counted.RESUMES, (*job.group, "failed"), number)
        effects.count(job, "resume_success", event.time_seconds, 0.0, number)


def count_preemption(job: Job, event: LedgerEvent, effects: Effects) -> None:
    """Counts a preemption and what it lost, once for the nodes and the scheduler that report it."""
    lost = event.number("lost_gpu_seconds")
    if job.is_new("preemption", event.attempt):
        job.preemptions += 1
        effects.add(counted.PREEMPTIONS, job.group)
        lost = _judged_loss(job, event.time_seconds, effects) if lost is None else lost
    if lost is not None and job.is_new("preemption_lost", event.attempt):
        job.lost_gpu_seconds += lost
        effects.add(counted.PREEMPTION_LOST, job.group, lost)


def _judged_loss(job: Job, time_seconds: float, effects: Effects) -> float | None:
    """GPU-seconds that a preemption cost; None without a durable checkpoint or the job's GPUs.

    It is good where it cost an interval of checkpoints and ten minutes at most. Only steps of the
    newest run can be lost by it; a job without two checkpoints has no interval.
    """
    if job.started is None or job.last_checkpoint is None:
        return None
    lost_seconds = max(0.0, time_seconds - max(job.last_checkpoint, job.run.begin))
    if job.checkpoints >= _MIN_CHECKPOINTS:
        interval_seconds = (job.last_checkpoint - job.started) / job.checkpoints
        is_good = lost_seconds <= interval_seconds + limits.PREEMPTION_GRACE_SECONDS
        effects.count(job, "preemption_loss", time_seconds, float(is_good), 1.0)
    return None if job.gpus is None else lost_seconds * job.gpus
