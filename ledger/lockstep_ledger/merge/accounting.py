"""GPU time by state, cost, checkpoints, resumes and preemptions of a job, as its events report."""

from collections.abc import Mapping

from lockstep_catalogue import ledger as counted
from lockstep_catalogue.vocabulary import GOODPUT_STATES, GoodputState
from lockstep_ledger.merge.effects import Effects
from lockstep_ledger.merge.event import LedgerEvent
from lockstep_ledger.merge.job import SCHEDULER, Job, NodeRun
from lockstep_records.ettr import PROGRESS_STATES, JobGoodput

_HOUR_SECONDS = 3600.0


def goodput(job: Job, event: LedgerEvent, effects: Effects, patience: object) -> None:
    """Adds what the totals of an attempt on a node have grown by.

    Totals are seconds of ranks; times GPUs over ranks they are GPU-seconds. A total that fell,
    because the page was written anew, adds nothing until it has passed its old height.
    """
    del patience
    node = job.run.nodes.get(event.node)
    if node is None or node.end is not None:
        return
    node.gpus = event.number("num_gpus") or node.gpus
    ranks = event.number("num_ranks")
    scale = node.gpus / ranks if node.gpus and ranks else 1.0
    if node.goodput_attempt != event.attempt:
        node.goodput_attempt, node.goodput = event.attempt, {}
    for state, seconds in event.numbers("rank_seconds").items():
        total = seconds * scale
        growth = total - node.goodput.get(state, 0.0)
        if state in GOODPUT_STATES and growth > 0:
            node.goodput[state] = total
            node.counted_gpu_seconds += growth
            _spend(job, state, growth, event.time_seconds, effects)


def close_node(job: Job, name: str, node: NodeRun, effects: Effects) -> None:
    """Counts the GPU time of a node that has ended: what no state covers is recovery or unknown."""
    allocated = node.gpu_seconds
    # Machines report their own time; the scheduler's word counts where no machine reports.
    if allocated is None or (name == SCHEDULER and job.run.machines):
        return
    remaining = max(0.0, allocated - node.counted_gpu_seconds)
    recovery = min(remaining, node.recovery_seconds * (node.gpus or 0.0))
    end = node.end or 0.0
    for state, seconds in (("recovery", recovery), ("unknown", remaining - recovery)):
        if seconds:
            _spend(job, state, seconds, end, effects)


def ratios(goodput_seconds: Mapping[GoodputState, float]) -> dict[str, float | None]:
    """Goodput and ETTR of a job; None where no GPU time is reported."""
    shares = JobGoodput(gpu_seconds=goodput_seconds)
    return {"goodput_ratio": shares.productive_ratio, "ettr_ratio": shares.ettr_ratio}


def _spend(job: Job, state: str, seconds: float, time_seconds: float, effects: Effects) -> None:
    job.gpu_seconds += seconds
    job.goodput[state] = job.goodput.get(state, 0.0) + seconds
    effects.add(counted.GPU_SECONDS, (*job.group, state), seconds)
    good = seconds if state == "productive" else 0.0
    effects.count(job.cluster, "goodput", time_seconds, good, seconds)
    moving = seconds if state in PROGRESS_STATES else 0.0
    effects.count(job.cluster, "ettr", time_seconds, moving, seconds)
    if job.price_per_gpu_hour is not None:
        cost = seconds / _HOUR_SECONDS * job.price_per_gpu_hour
        job.cost += cost
        effects.add(counted.COST, job.group, cost)


def resumed(job: Job, event: LedgerEvent, effects: Effects, patience: object) -> None:
    """Counts that an attempt resumed, once however many nodes report it; step 0 is a new start."""
    del patience
    step = event.count("step") or 0
    if step == 0 or not job.is_new("resume", event.attempt):
        return
    job.resumes += 1
    is_fallback = event.fields.get("fallback") is True
    effects.add(counted.RESUMES, (*job.group, "fallback" if is_fallback else "ok"))
    is_good = float(not is_fallback)
    effects.count(job.cluster, "resume_success", event.time_seconds, is_good, 1.0)


def checkpointed(job: Job, event: LedgerEvent, effects: Effects, patience: object) -> None:
    """Counts a durable checkpoint, once for the ranks that wrote its parts."""
    del patience
    step = event.count("step")
    if not job.is_new("checkpoint", event.attempt, -1.0 if step is None else step):
        return
    job.checkpoints += 1
    job.last_checkpoint, job.last_checkpoint_step = event.time_seconds, step
    effects.add(counted.CHECKPOINTS, (*job.group, "ok"))
    effects.count(job.cluster, "checkpoint_success", event.time_seconds, 1.0, 1.0)


def count_preemption(job: Job, event: LedgerEvent, effects: Effects) -> None:
    """Counts a preemption, once for the nodes and the scheduler that report it."""
    lost = event.number("lost_gpu_seconds")
    if lost is not None and job.is_new("preemption_lost", event.attempt):
        job.lost_gpu_seconds += lost
        effects.add(counted.PREEMPTION_LOST, job.group, lost)
    if job.is_new("preemption", event.attempt):
        job.preemptions += 1
        effects.add(counted.PREEMPTIONS, job.group)
