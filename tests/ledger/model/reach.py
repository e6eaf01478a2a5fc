"""Which branches of the contract a job reaches: what random histories try is counted by it."""

from collections.abc import Callable, Mapping

from .gpu_time import allocations_of, granted_gpus, recoveries, scaled_reports, span_gpus
from .job_history import JobHistory
from .tallies import (
    CHECKPOINT_OUTCOMES,
    RESTORES,
    checkpoints,
    met_deadline,
    outcome_of,
    requeue_causes,
    restores,
)
from .verdicts import silent_nodes

_Reaches = Callable[[JobHistory], bool]


def _runs(reaches: Callable[[JobHistory, int], bool]) -> _Reaches:
    """Whether any run of a job does."""
    return lambda job: any(reaches(job, index) for index in range(len(job.runs)))


def _is_scaled_down(job: JobHistory) -> bool:
    return any(
        sum(seconds.values()) > (fact.time - span.begin) * span_gpus(span, job.words) * 1.2
        for span in job.node_spans
        for fact, seconds in scaled_reports(span, span_gpus(span, job.words))
    )


def _has_restart_in_place(job: JobHistory, index: int) -> bool:
    return len(job.runs[index].spans) > len(job.runs[index].last_spans)


def _is_unknown_to_its_scheduler(job: JobHistory, index: int) -> bool:
    has_others = any(run.scheduler is not None for run in job.runs)
    return has_others and job.runs[index].scheduler is None


def _is_ended_by_a_scheduler_without_start(job: JobHistory, index: int) -> bool:
    run = job.runs[index]
    return bool(run.spans) and run.scheduler is not None and not run.scheduler.has_start


def _is_decided_by_incident(job: JobHistory, index: int) -> bool:
    ends = [span.end_fact for span in job.runs[index].last_spans if span.end_fact is not None]
    cause = job.verdicts[index].verdict.cause
    return bool(job.runs[index].incidents) and cause not in {end.text("cause") for end in ends}


def _lower_attempt_joins(job: JobHistory, index: int) -> bool:
    run = job.runs[index]
    return len({span.attempt for span in run.last_spans}) > 1


BRANCHES: Mapping[str, _Reaches] = {
    "several ids are one job": lambda job: len({fact.job_id for fact in job.facts}) > 1,
    "a second instance of a number": lambda job: "@" in job.joined.job_id,
    "node: a start without an end, bounded": lambda job: any(
        span.end is None and span.bound is not None for span in job.node_spans
    ),
    "node: several launchers": lambda job: any("/" in span.node for span in job.node_spans),
    "node: an end without a start": lambda job: any(not s.has_start for s in job.node_spans),
    "run: of the scheduler alone": _runs(lambda job, i: not job.runs[i].spans),
    "run: of nodes alone": _runs(lambda job, i: job.runs[i].scheduler is None),
    "run: unknown to its scheduler": _runs(_is_unknown_to_its_scheduler),
    "run: ended by a scheduler without a start": _runs(_is_ended_by_a_scheduler_without_start),
    "run: an end in the queue": _runs(lambda job, i: not job.runs[i].has_start),
    "run: restart in place": _runs(_has_restart_in_place),
    "run: nodes of different attempts": _runs(_lower_attempt_joins),
    "run: closed by a requeue alone": _runs(
        lambda job, i: (
            job.runs[i].scheduler_end is not None
            and getattr(job.runs[i].scheduler, "end_fact", None) is None
        )
    ),
    "queue: waits for ever": lambda job: not job.runs or job.waits_in_queue,
    "settled by silence": lambda job: (
        bool(job.runs)
        and job.is_finished
        and not any(span.end is not None for span in job.runs[-1].last_spans)
        and job.runs[-1].scheduler_end is None
    ),
    "running for ever": lambda job: job.status == "running",
    "some nodes silent": lambda job: (
        bool(job.runs) and 0 < len(silent_nodes(job.runs[-1])) < len(job.runs[-1].last_spans)
    ),
    "verdict: by an incident": _runs(_is_decided_by_incident),
    "verdict: the launcher's is lost": lambda job: any(
        each.lost is not None and each.lost[0] == "launcher" for each in job.verdicts
    ),
    "verdict: the scheduler's is lost": lambda job: any(
        each.lost is not None and each.lost[0] == "scheduler" for each in job.verdicts
    ),
    "time: by parts": lambda job: bool(allocations_of(job.facts)),
    "time: zero GPUs": _runs(lambda job, i: granted_gpus(job.runs[i], job.words) == 0),
    "time: GPUs unknown to the scheduler": _runs(
        lambda job, i: (
            job.runs[i].scheduler is not None and granted_gpus(job.runs[i], job.words) is None
        )
    ),
    "time: recovery": lambda job: any(map(recoveries, job.node_spans)),
    "time: claims are scaled down": _is_scaled_down,
    "words: launchers disagree": lambda job: bool(job.words.disagreements()),
    "words: the scheduler changes its own": lambda job: any(
        fact.fields.get("queue") not in {None, job.words.value("queue")}
        for fact in job.words.scheduler
    ),
    "price: of the ledger": lambda job: job.words.value("price_per_gpu_hour") is None,
    **{
        f"outcome: {name}": lambda job, name=name: outcome_of(job)[0] == name  # type: ignore[misc] # a default binds the name
        for name in (
            "succeeded",
            "not_converged",
            "failed",
            "cancelled",
            "preempted",
            "time_limit",
            "unknown",
        )
    },
    **{
        f"requeue: {name}": lambda job, name=name: name in requeue_causes(job)  # type: ignore[misc] # a default binds the name
        for name in ("preemption", "infra", "user", "unknown")
    },
    **{
        f"checkpoint: {name}": lambda job, name=name: checkpoints(job)[name] > 0  # type: ignore[misc] # a default binds the name
        for name in CHECKPOINT_OUTCOMES
    },
    **{
        f"restore: {name}": lambda job, name=name: restores(job)[name] > 0  # type: ignore[misc] # a default binds the name
        for name in RESTORES
    },
    "deadline: met": lambda job: met_deadline(job) is True,
    "deadline: missed": lambda job: met_deadline(job) is False,
}
