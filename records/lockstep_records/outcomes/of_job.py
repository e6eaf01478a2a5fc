"""Gathers the evidence of an attempt from the job's folder on this node: events and pages."""

import time
from dataclasses import replace
from pathlib import Path

from lockstep_records.attempts import pages_of
from lockstep_records.events import Event, read_events
from lockstep_records.jobs import page_in
from lockstep_records.last_output import read_error, read_output
from lockstep_records.outcomes.evidence import (
    Evidence,
    RankEnd,
    hang_of,
    node_events_of,
    ranks_of,
)
from lockstep_records.page.reader import Page

# A hang is noticed some seconds after its last heartbeat, never before it.
_HANG_SLACK_SECONDS = 2.0


def evidence_of(
    job: Path,
    attempt: int,
    *,
    launcher_signal: str | None = None,
    at_time_limit: bool = False,
    outside_time: float | None = None,
) -> Evidence:
    """What the job's folder knows of the end of an attempt on this node.

    Args:
        job: folder of the job.
        attempt: its number.
        launcher_signal: name of the signal that stopped the launcher; None for none.
        at_time_limit: whether it came when the time limit was due.
        outside_time: when it came, seconds since 1970.

    Raises:
        OSError: the folder cannot be read.
    """
    events, pages = read_events(job), pages_of(job / str(attempt))
    phases = {int(page.identity["rank"]): page.phase for page in pages}
    has_hung, missing = hang_of(events, attempt)
    sizes = [int(page.identity["world_size"]) for page in pages]
    ranks = ranks_of(events, attempt, phases=phases)
    ended = {end.rank for end in ranks}
    # Nobody waited for the process of a rank that plain torchrun started: its page is all there is.
    unseen = [RankEnd(rank=rank, phase=phases[rank]) for rank in sorted(phases.keys() - ended)]
    return Evidence(
        ranks=tuple(_with_last_words(job / str(attempt), end) for end in (*ranks, *unseen)),
        world_size=max(sizes, default=None),
        node_events=node_events_of(events, attempt, _end_of(ranks, outside_time)),
        launcher_signal=launcher_signal,
        at_time_limit=at_time_limit,
        outside_time=outside_time,
        missing=missing,
        has_hung=has_hung and _lasted(events, attempt, pages),
    )


def _end_of(ranks: tuple[RankEnd, ...], outside_time: float | None) -> float | None:
    """When the first rank ended, or the attempt was ended; None where nobody saw it."""
    times = [end.time for end in ranks if end.time is not None]
    return min((*times, *([] if outside_time is None else [outside_time])), default=None)


def _with_last_words(attempt: Path, end: RankEnd) -> RankEnd:
    """The end of a rank with what it wrote last and the error that ended it, where they are."""
    page = page_in(attempt, end.rank)
    error = read_error(page)
    return replace(
        end,
        last_lines=read_output(page) or "",
        exception=end.exception or (None if error is None else str(error)),
    )


def _lasted(events: list[Event], attempt: int, pages: list[Page]) -> bool:
    """Whether no rank has moved on since the last hang that was reported."""
    begin = max(e.time for e in events if e.kind == "hang" and e.attempt == attempt)
    hang_age_seconds = time.time() - begin
    ages = [(time.monotonic_ns() - page.progress_ns) * 1e-9 for page in pages]
    return all(age >= hang_age_seconds - _HANG_SLACK_SECONDS for age in ages)
