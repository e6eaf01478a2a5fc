"""GPU time by state and cost of a job, as its events report."""

from collections.abc import Mapping

from lockstep_catalogue import ledger as counted
from lockstep_catalogue.vocabulary import GOODPUT_STATES, GoodputState
from lockstep_ledger.merge.effects import Effects
from lockstep_ledger.merge.event import LedgerEvent
from lockstep_ledger.merge.job import SCHEDULER, Job, NodeRun
from lockstep_ledger.merge.plausible import most_gpu_seconds
from lockstep_records.progress.ettr import PROGRESS_STATES, JobGoodput

_HOUR_SECONDS = 3600.0


def goodput(job: Job, event: LedgerEvent, effects: Effects) -> None:
    """Adds what the totals of an attempt on a node have grown by.

    Totals are seconds of ranks; times GPUs over ranks they are GPU-seconds. A total that fell,
    because the page was written anew, adds nothing until it has passed its old height.
    """
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
            growth = _count(job, node, growth, event.time_seconds)
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


def recovered(job: Job, node: NodeRun, event: LedgerEvent, effects: Effects) -> None:
    """Counts the time since the attempt before, when the next begins and not at the job's end.

    Windows of minutes hold what happened in them then, and not the recoveries of days at once.
    """
    if node.attempt_end is None:
        return
    seconds = max(0.0, event.time_seconds - node.attempt_end)
    node.attempt_end = None
    if not node.gpus:
        node.recovery_seconds += seconds
    elif seconds:
        counted_seconds = _count(job, node, seconds * node.gpus, event.time_seconds)
        _spend(job, "recovery", counted_seconds, event.time_seconds, effects)


def _count(job: Job, node: NodeRun, gpu_seconds: float, time_seconds: float) -> float:
    """Notes GPU time as counted; how much of it the GPUs of the node can have had until then."""
    most = most_gpu_seconds(job, node, time_seconds) - node.counted_gpu_seconds
    counted_seconds = max(0.0, min(gpu_seconds, most))
    node.counted_gpu_seconds += counted_seconds
    return counted_seconds


def ratios(goodput_seconds: Mapping[GoodputState, float]) -> dict[str, float | None]:
    """Goodput and ETTR of a job; None where no GPU time is reported."""
    shares = JobGoodput(gpu_seconds=goodput_seconds)
    return {"goodput_ratio": shares.productive_ratio, "ettr_ratio": shares.ettr_ratio}


def _spend(job: Job, state: str, seconds: float, time_seconds: float, effects: Effects) -> None:
    job.counted_until = max(job.counted_until, time_seconds)
    job.gpu_seconds += seconds
    job.goodput[state] = job.goodput.get(state, 0.0) + seconds
    effects.add(counted.GPU_SECONDS, (*job.group, state), seconds)
    # Unreported time does not count as bad: telemetry has its own objective.
    if state != "unknown":
        good = seconds if state == "productive" else 0.0
        effects.count(job, "goodput", time_seconds, good, seconds)
        moving = seconds if state in PROGRESS_STATES else 0.0
        effects.count(job, "ettr", time_seconds, moving, seconds)
    if job.price_per_gpu_hour is not None:
        cost = seconds / _HOUR_SECONDS * job.price_per_gpu_hour
        job.cost += cost
        effects.add(counted.COST, job.group, cost)
