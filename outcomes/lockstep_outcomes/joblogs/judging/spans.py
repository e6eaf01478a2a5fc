"""Spans of a job by its log: start-up, run, wall clock, and the time after the last progress."""

from lockstep_outcomes.joblogs.model import JobLog


def spans_of(log: JobLog, *, is_hang: bool) -> dict[str, float | None]:
    """Fields of an incident: spans in seconds, and the end since 1970; None where unknown.

    Never negative. The wall clock reaches from the first sign to the end and holds the others. In a
    hang the job lives as long as its scheduler calls it running.
    """
    begin, progress = log.training_start, log.last_progress
    stop = log.run_stop if log.run_stop is not None else progress
    ended = _ended(log, is_hang=is_hang)
    return {
        "ended": ended,
        "startup_seconds": _difference(log.first_sign, begin),
        "run_seconds": _difference(begin, stop),
        "wall_seconds": _difference(log.first_sign, ended),
        "seconds_after_last_progress": _difference(_last_progress(log), ended),
    }


def _last_progress(log: JobLog) -> float | None:
    if log.last_progress is not None or log.watched is None:
        return log.last_progress if log.last_progress is not None else log.training_start
    # Lines of progress without a time stand before the scheduler's.
    return log.watched[0]


def _ended(log: JobLog, *, is_hang: bool) -> float | None:
    """When the ranks ended: by the resource manager's line, else the last sign of the job.

    A closing line may carry the start's time and a late one an old time, so that the latest counts.
    """
    killed = [f.first.time for f in log.select_kinds("time_limit", "preempted", "slurm_cancelled")]
    by_manager = next((time for time in killed if time is not None), None)
    ends = [t for t in (by_manager, log.last_progress, log.run_stop) if t is not None]
    if by_manager is None and log.last_sign is not None:
        ends.append(log.last_sign)
    if is_hang and log.watched is not None:
        ends.append(log.watched[1])
    return max(ends, default=None)


def _difference(begin: float | None, end: float | None) -> float | None:
    """The time between two moments; None where their order is impossible."""
    if begin is None or end is None or end < begin:
        return None
    return end - begin
