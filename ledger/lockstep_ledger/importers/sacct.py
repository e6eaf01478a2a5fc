"""Slurm's accounting: events of the jobs that ``sacct --parsable2`` lists."""

import subprocess
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta, timezone

from lockstep_ledger.importers.scheduler_events import JobEvents
from lockstep_records.events.event import Event
from lockstep_records.outcomes.classify import classify
from lockstep_records.outcomes.evidence import Evidence
from lockstep_records.outcomes.signs import status_sign
from lockstep_records.outcomes.slurm import SlurmJob, jobs, rows

COLUMNS = (
    "JobID", "JobName", "User", "Account", "Partition", "State", "ExitCode", "Submit", "Start",
    "End", "Timelimit", "NNodes", "AllocTRES", "NodeList", "Cluster",
)  # fmt: skip
"""What ``sacct`` is asked for; a table with fewer is read too."""
_TIMEOUT_SECONDS = 300.0
_WENT_BACK = frozenset({"REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
_OWN_WORD = frozenset({"FAILED", "SPECIAL_EXIT"})


def read_sacct(
    lines: Iterable[bytes | str], *, cluster: str | None = None, utc_offset_seconds: int = 0
) -> Iterator[Event]:
    """Events of all jobs of a table.

    Args:
        lines: output of sacct with a header, steps and requeues included or not.
        cluster: of the jobs.
        utc_offset_seconds: how far Slurm's clock is ahead of UTC.

    Raises:
        ValueError: the text is not such a table.
    """
    for job in jobs(rows(lines), utc_offset_seconds):
        yield from events_of_job(job, cluster)


def run_sacct(since_seconds: float, until_seconds: float, utc_offset_seconds: int) -> list[bytes]:
    """What sacct prints about the jobs of a period, requeues with their own rows.

    Raises:
        OSError: sacct is not installed.
        subprocess.SubprocessError: it failed, or did not end in five minutes.
    """
    zone = timezone(timedelta(seconds=utc_offset_seconds))
    times = [
        datetime.fromtimestamp(seconds, UTC).astimezone(zone).strftime("%Y-%m-%dT%H:%M:%S")
        for seconds in (since_seconds, until_seconds)
    ]
    command = ["sacct", "--allusers", "--duplicates", "--allocations", "--parsable2"]
    command += ["--format", ",".join(COLUMNS), "--starttime", times[0], "--endtime", times[1]]
    printed = subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_SECONDS)
    return printed.stdout.splitlines()


def events_of_job(job: SlurmJob, cluster: str | None = None) -> Iterator[Event]:
    """Submission, starts, requeues and end of a job, as far as its rows tell them."""
    events = JobEvents(source="slurm", job_id=job.job_id, cluster=cluster)
    described = {
        "name": job.name,
        "user": job.user,
        "queue": job.partition,
        "project": job.account,
        "num_nodes": job.nodes,
        "num_gpus": job.gpus,
        "gpu_model": job.gpu_model,
        "time_limit_seconds": job.time_limit_seconds,
        "source": "slurm",
    }
    first_start = next((run.start for run in job.earlier if run.start is not None), job.start)
    # Slurm writes a requeue's time over that of the submission.
    submitted = [time for time in (job.submit, first_start) if time is not None]
    if job.submit is not None:
        yield events.event("job_submitted", min(submitted), "submit", described)
    for number, run in enumerate(job.earlier):
        if run.start is not None:
            yield events.event("job_started", run.start, run.start, described, number)
        if run.end is not None:
            yield from _requeued(events, run.start, run.end, run.state, number)
    number = len(job.earlier)
    if job.start is not None:
        yield events.event("job_started", job.start, job.start, described, number)
    if job.end is None or job.outcome in {"running", "pending"}:
        return
    if job.state in _WENT_BACK:
        yield from _requeued(events, job.start, job.end, job.state, number)
        return
    fields = classify(_evidence(job)).event_fields() | {"exit_code": job.exit_code}
    if job.cancelled_by is not None:
        fields["reason"] = f"It was cancelled by user {job.cancelled_by}."
    yield events.event("job_finished", job.end, job.start, fields, number)


def _requeued(
    events: JobEvents, start: float | None, end: float, state: str, number: int
) -> Iterator[Event]:
    """The end of a run after which the job waited again."""
    judged = classify(Evidence(scheduler=(state,))).event_fields()
    yield events.event("job_finished", end, start, judged, number)
    reason = {"reason": state, "restart_count": number + 1}
    yield events.event("job_requeued", end, start, reason, number)


def _evidence(job: SlurmJob) -> Evidence:
    """The state, or what the exit status of the batch script tells better than FAILED does."""
    if job.state in _OWN_WORD and (job.exit_code or job.signal):
        sign = status_sign(-job.signal if job.signal else job.exit_code or 0)
        if sign not in {"exit", "exit_ok"}:
            return Evidence(reported=(sign,))
    return Evidence(scheduler=(job.state,))
