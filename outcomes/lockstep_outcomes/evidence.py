"""Evidence of how a job ended: its ranks, the scheduler's words, its nodes' incidents."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lockstep_outcomes.progress.progress_events import HangRecord, hangs_of, standstill_words
from lockstep_records.events.event import Event, read_events
from lockstep_records.files.jobs import page_in, pages_of
from lockstep_records.files.last_output import read_error, read_output
from lockstep_records.page.reader import Page

LATE_SECONDS = 5.0
"""By how much a line about a fault may come after the end of the process that it ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Presence:
    """A rank of an attempt on its node.

    Attributes:
        end: of its end; None while it runs.
        pid: of its process as the kernel of the node counts; None where that is unknown.
        device: UUID of its GPU, or of the instance of one; empty on a CPU.
    """

    job_id: str
    attempt: int
    rank: int
    begin: float
    end: float | None = None
    pid: int | None = None
    device: str = ""

    def lateness(self, time: float) -> float | None:
        """Seconds by which a moment is after its end, 0 within its life; None where neither."""
        late = 0.0 if self.end is None else max(0.0, time - self.end)
        return late if time >= self.begin and late <= LATE_SECONDS else None


@dataclass(frozen=True, kw_only=True, slots=True)
class SignOrigin:
    """Where a sign was, at moments at which it is known: a pid, or UUIDs of a GPU, where named."""

    times: tuple[float, ...]
    pid: int | None = None
    devices: frozenset[str] | None = None


def find_owners(sign: SignOrigin, presences: Iterable[Presence]) -> list[Presence]:
    """The ranks that a sign belongs to.

    Of those who were present: the process that it names, else all on its GPU, else all of the node.
    Who had just ended is taken where nobody was there at that moment.
    """
    present = [
        (presence, min(late))
        for presence in presences
        if (late := [each for at in sign.times if (each := presence.lateness(at)) is not None])
    ]
    if sign.devices is not None:
        present = [each for each in present if each[0].device in sign.devices]
    if sign.pid is not None:
        named = [each for each in present if each[0].pid == sign.pid]
        is_stranger = all(presence.pid is not None for presence, _ in present)
        if named or is_stranger or sign.devices is None:
            present = named
    least = min((late for _, late in present), default=0.0)
    return [presence for presence, late in present if late == least or not late]


def drop_strangers(events: Iterable[Event]) -> list[Event]:
    """A job's events without signs of times at which its attempt did not run."""
    events = list(events)
    begins: dict[int, float] = {}
    ends: dict[int, float] = {}
    for event in events:
        if event.kind == "attempt_started":
            begins[event.attempt] = min(event.time, begins.get(event.attempt, event.time))
        elif event.kind == "attempt_ended":
            ends[event.attempt] = max(event.time, ends.get(event.attempt, event.time))
    return [
        event
        for event in events
        if event.kind != "node_event"
        or Presence(
            job_id=event.job_id,
            attempt=event.attempt,
            rank=0,
            begin=begins.get(event.attempt, 0.0),
            end=ends.get(event.attempt),
        ).lateness(event.time)
        is not None
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEnd:
    """How one rank ended; None where unknown.

    Attributes:
        exit_code: negative for a signal.
        first: whether it failed before all others of its node.
        exception: type and message of what ended it.
        last_lines: the end of its output.
        idle_seconds: from the last update of its page to its end.
    """

    rank: int
    node: str | None = None
    exit_code: int | None = None
    first: bool = False
    exception: str | None = None
    last_lines: str = ""
    phase: str | None = None
    time: float | None = None
    last_step: int | None = None
    idle_seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeEvent:
    """An incident of a node; ``sign`` is a name of the outcome table, such as xid."""

    sign: str
    node: str | None = None
    ranks: tuple[int, ...] = ()
    detail: str = ""
    time: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """All that is known of the end of a job, of an attempt, or of a node's part of them.

    Attributes:
        ranks: those that have started, as far as their ends are known.
        world_size: of the whole job; None where unknown.
        scheduler: words of Slurm or Kubernetes, such as TIMEOUT or OOMKilled.
        launcher_signal: name of the signal that stopped the launcher; None for none.
        at_time_limit: whether that came when the time limit was due.
        outside_time: when scheduler or signal ended the job; None where unknown or not ended so.
        missing: ranks that the others waited for in a hang.
        has_hung: whether a hang was reported and lasted until the end.
        hang_words: who stood still in it, and where; empty where unknown.
        reported: signs that a log or a program reports of the job as a whole: success,
            not_converged, launch_failure, ...
    """

    ranks: tuple[RankEnd, ...] = ()
    world_size: int | None = None
    scheduler: tuple[str, ...] = ()
    node_events: tuple[NodeEvent, ...] = ()
    launcher_signal: str | None = None
    at_time_limit: bool = False
    outside_time: float | None = None
    missing: tuple[int, ...] = ()
    has_hung: bool = False
    hang_words: str = ""
    reported: tuple[str, ...] = ()


def ranks_of(events: Iterable[Event], attempt: int) -> tuple[RankEnd, ...]:
    """The ends of the ranks of an attempt, in the order of their ends."""
    return tuple(
        RankEnd(
            rank=rank,
            node=event.node,
            exit_code=_integer(event.fields.get("exit_code")),
            first=event.fields.get("first") is True,
            exception=_text(event.fields.get("exception")),
            time=event.time,
        )
        for event in events
        if event.kind == "rank_ended"
        and event.attempt == attempt
        and (rank := _integer(event.fields.get("rank"))) is not None
    )


NODE_EVENT_SECONDS = 1800.0
"""How long before an end a node's trouble may be its cause: the others notice by a time-out, of
NCCL 10 minutes by default and often 30. What a job has survived for longer did not end it."""


def node_events_of(
    events: Iterable[Event], attempt: int, end: float | None = None
) -> tuple[NodeEvent, ...]:
    """Incidents of the nodes in an attempt, without those long before its end if that is known."""
    return tuple(
        NodeEvent(
            sign=sign,
            node=event.node,
            ranks=tuple(
                rank
                for value in _list(event.fields.get("ranks"))
                if (rank := _integer(value)) is not None
            ),
            detail=_text(event.fields.get("detail")) or "",
            time=event.time,
        )
        for event in drop_strangers(events)
        if event.kind == "node_event"
        and event.attempt == attempt
        and (end is None or event.time >= end - NODE_EVENT_SECONDS)
        and (sign := _text(event.fields.get("sign"))) is not None
    )


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def evidence_of(
    job: Path,
    attempt: int,
    *,
    launcher_signal: str | None = None,
    at_time_limit: bool = False,
    outside_time: float | None = None,
) -> Evidence:
    """What the job's folder knows of the end of an attempt on this node; or OSError.

    ``launcher_signal`` stopped the launcher, ``at_time_limit`` if the limit was due, at
    ``outside_time``.
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
