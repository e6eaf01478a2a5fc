"""Gathers the evidence of an attempt from the job's folder on this node: events and pages."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from lockstep_outcomes.evidence import (
    Evidence,
    RankEnd,
    node_events_of,
    ranks_of,
)
from lockstep_outcomes.progress.hang_events import HangRecord, hangs_of, standstill_words
from lockstep_records.events.event import read_events
from lockstep_records.files.attempts import pages_of
from lockstep_records.files.jobs import page_in
from lockstep_records.files.last_output import read_error, read_output
from lockstep_records.page.reader import Page


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
    page_by_rank = {int(page.identity["rank"]): page for page in pages}
    lasting = [hang for hang in hangs_of(events, attempt) if _lasted(hang, page_by_rank)]
    sizes = [int(page.identity["world_size"]) for page in pages]
    ranks = ranks_of(events, attempt)
    return Evidence(
        ranks=tuple(_ends(job / str(attempt), ranks, page_by_rank)),
        world_size=max(sizes, default=None),
        node_events=node_events_of(events, attempt, _end_of(ranks, outside_time)),
        launcher_signal=launcher_signal,
        at_time_limit=at_time_limit,
        outside_time=outside_time,
        missing=tuple(sorted({rank for hang in lasting for rank in hang.missing})),
        has_hung=bool(lasting),
        hang_words=standstill_words(lasting[-1]) if lasting else "",
    )


def _ends(
    attempt: Path, ends: Sequence[RankEnd], page_by_rank: dict[int, Page]
) -> Iterator[RankEnd]:
    """The ends of the ranks, with what they left behind; those that nobody waited for as well."""
    # Of a rank that plain torchrun started its page is all there is.
    unseen = sorted(page_by_rank.keys() - {end.rank for end in ends})
    for end in (*ends, *(RankEnd(rank=rank) for rank in unseen)):
        yield _with_last_words(attempt, _apply_page(end, page_by_rank.get(end.rank)))


def _apply_page(end: RankEnd, page: Page | None) -> RankEnd:
    """The end of a rank with what its page says of the last it did."""
    if page is None:
        return end
    idle = None if end.time is None else max(0.0, end.time - page.progress_wall_seconds)
    return replace(end, phase=page.phase, last_step=page.state["step"], idle_seconds=idle)


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


def _lasted(hang: HangRecord, page_by_rank: dict[int, Page]) -> bool:
    """Whether none of its ranks completed a step after a hang was reported.

    A time-out that ends the hang closes the pages of those who waited: a heartbeat is not progress.
    """
    if hang.end is not None:
        return False
    pages = [(rank, page_by_rank[rank.rank]) for rank in hang.ranks if rank.rank in page_by_rank]
    return all(
        page.state["step"] is None or (rank.step is not None and page.state["step"] <= rank.step)
        for rank, page in pages
    )
