"""Evidence of how a job ended: its ranks, the scheduler's words, incidents of its nodes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lockstep_records.events.event import Event


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEnd:
    """How one rank ended; None where unknown.

    Attributes:
        exit_code: negative for a signal.
        first: whether it failed before all others of its node.
        exception: type and message of what ended it.
        last_lines: the end of its output.
        phase: last phase of its page; ``done`` when its loop ended.
        time: of its end, seconds since 1970.
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
        for event in events
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
