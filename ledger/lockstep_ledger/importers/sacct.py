"""Events of jobs by Slurm's accounting."""

import functools
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, tzinfo
from typing import Any

from lockstep_ledger.importers.scheduler_events import JobEvents
from lockstep_outcomes.classify import classify
from lockstep_outcomes.evidence import Evidence
from lockstep_outcomes.signs import status_sign
from lockstep_outcomes.slurm import SlurmJob, jobs
from lockstep_outcomes.slurm_tables import rows
from lockstep_records.events.event import Event
from lockstep_records.events.kinds import MAX_NAME
from lockstep_records.text.printable import printable

_WENT_BACK = frozenset({"REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
_OWN_WORD = frozenset({"FAILED", "SPECIAL_EXIT"})
_OUT_OF_MEMORY = 125
"""What Slurm gives for the signal of a step that its cgroup ended; the script says FAILED alone."""


def read_sacct(
    lines: Iterable[bytes | str],
    *,
    zone: tzinfo = UTC,
    warn: Callable[[str], None] = lambda _: None,
) -> Iterator[Event]:
    """Events of all jobs of a table.

    Args:
        lines: output of sacct with a header, steps and requeues included or not.
        zone: in which sacct printed its times.
        warn: gets a sentence for each row that is left out.

    Raises:
        ValueError: the text is not such a table.
    """
    for job in jobs(rows(lines, warn=warn), zone):
        yield from events_of_job(job)


def description_of(job: SlurmJob) -> dict[str, object]:
    """What Slurm says of a job now, as fields of an event."""
    return {
        # A name that no event may hold would keep its job from being heard of, and from being paid.
        "name": job.name and printable(job.name, MAX_NAME),
        "user": job.user,
        # A job that waits for any of several partitions is in none of them.
        "queue": None if "," in (job.partition or "") else job.partition,
        "project": job.account,
        "job_class": job.qos,
        "gpu_model": job.gpu_model,
        "time_limit_seconds": job.time_limit_seconds,
        "aliases": [f"slurm:{job.cluster}:{job.job_id}"] if job.cluster else None,
        "source": "slurm",
    }


def events_of_job(job: SlurmJob) -> Iterator[Event]:
    """Submission, starts, requeues and end of a job, as far as its rows tell them."""
    events = JobEvents(source="slurm", job_id=job.job_id)
    described = description_of(job)
    size = {"num_nodes": job.nodes, "num_gpus": job.gpus or 0}
    # Slurm writes a requeue's time over that of the submission, in the newest row of a job.
    submits = [time for time in (*(run.submit for run in job.earlier), job.submit) if time]
    starts = [time for time in (*(run.start for run in job.earlier), job.start) if time]
    if submits:
        submitted = min([*submits, *starts])
        yield events.event("job_submitted", submitted, f"submit {submitted:.0f}", described | size)
    for number, run in enumerate(job.earlier):
        size_of_run = {"num_nodes": run.nodes, "num_gpus": run.gpus or 0}
        if run.start is not None:
            start = described | size_of_run
            yield events.event("job_started", run.start, run.start, start, number)
        if run.end is not None:
            yield from _requeued(events, run.start, run.end, run.state, number)
    number = len(job.earlier)
    if job.start is not None:
        yield events.event("job_started", job.start, job.start, described | size, number)
    if job.end is None:
        return
    if job.state in _WENT_BACK:
        yield from _requeued(events, job.start, job.end, job.state, number)
        return
    # A script may end well after a step that did not.
    exit_code = (job.state == "COMPLETED" and job.step_exit_code) or job.exit_code
    fields = _judge(_evidence(job)) | {"exit_code": exit_code}
    if job.cancelled_by is not None:
        fields["reason"] = f"It was cancelled by user {job.cancelled_by}."
    # Without a start the submission tells ends in the queue apart.
    begin = job.submit if job.start is None else job.start
    yield events.event("job_finished", job.end, begin, fields, number)


def later_word(job: SlurmJob, time: float) -> Event:
    """What Slurm says of a job that was described otherwise before: name, account, queue, class."""
    events = JobEvents(source="slurm", job_id=job.job_id)
    described = description_of(job) | {"num_nodes": job.nodes, "num_gpus": job.gpus or 0}
    return events.event("job_submitted", time, f"word {time:.0f} {described}", described)


@functools.lru_cache(maxsize=1000)
def _judge(evidence: Evidence) -> dict[str, Any]:
    """Fields of an end; few words of Slurm end thousands of jobs."""
    return classify(evidence).event_fields()


def _requeued(
    events: JobEvents, start: float | None, end: float, state: str, number: int
) -> Iterator[Event]:
    """The end of a run after which the job waited again."""
    judged = _judge(Evidence(scheduler=(state,)))
    yield events.event("job_finished", end, start, judged, number)
    reason = {"reason": state, "restart_count": number + 1}
    yield events.event("job_requeued", end, start, reason, number)


def _evidence(job: SlurmJob) -> Evidence:
    """The state, or what the exit status of the batch script tells better than FAILED does."""
    if job.state in _OWN_WORD and job.step_signal == _OUT_OF_MEMORY:
        return Evidence(scheduler=("OUT_OF_MEMORY",))
    if job.state in _OWN_WORD and (job.exit_code or job.signal):
        sign = status_sign(-job.signal if job.signal else job.exit_code or 0)
        if sign not in {"exit", "exit_ok"}:
            return Evidence(reported=(sign,))
    return Evidence(scheduler=(job.state,))
