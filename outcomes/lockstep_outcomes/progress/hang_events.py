"""Hangs by the events of a job's launchers: who stood still, since when, and until when."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lockstep_outcomes.progress.hangs import Hang, HungRank
from lockstep_records.events.event import Event

_STOPPED, _KERNEL_WAIT = frozenset("Tt"), "D"
_MAX_NAMED = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class HangRecord:
    """One hang on one node.

    Attributes:
        begin: wall clock of the last progress of any rank, seconds since 1970.
        end: wall clock at which its ranks moved on; None where nobody saw that.
        missing: ranks that the others waited for; empty where none stands apart.
    """

    attempt: int
    node: str | None
    begin: float
    end: float | None
    ranks: tuple[HungRank, ...]
    missing: tuple[int, ...]

    @property
    def step(self) -> int | None:
        """The last step that was completed before; None where none was."""
        return max((rank.step for rank in self.ranks if rank.step is not None), default=None)


def hangs_of(events: Iterable[Event], attempt: int) -> list[HangRecord]:
    """The hangs of an attempt in the order of their begin, each with its end where one was seen."""
    hangs: list[HangRecord] = []
    for event in events:
        if event.attempt != attempt or event.kind not in {"hang", "hang_ended"}:
            continue
        if event.kind == "hang":
            hangs.append(_record(event))
            continue
        open_hangs = [at for at, h in enumerate(hangs) if h.node == event.node and h.end is None]
        for at in open_hangs:
            hangs[at] = replace(hangs[at], end=event.time)
    return hangs


def record_of(hang: Hang, attempt: int, now: float) -> HangRecord:
    """A hang that was found on this node just now."""
    return HangRecord(
        attempt=attempt,
        node=None,
        begin=now - min(rank.idle_seconds for rank in hang.ranks),
        end=None,
        ranks=hang.ranks,
        missing=hang.missing,
    )


def standstill_words(hang: HangRecord) -> str:
    """Who stood still where, and in which phase the others waited; without a full stop."""
    after = "before its first step" if hang.step is None else f"after step {hang.step}"
    missing = [rank for rank in hang.ranks if rank.rank in hang.missing]
    others = [rank for rank in hang.ranks if rank.rank not in hang.missing]
    if not missing:
        apart = "no rank stands apart"
        if hang.missing:
            apart = f"{rank_words(hang.missing)} did not come"
        return f"no rank made progress {after}: {apart}{_places(others)}"
    where = sorted({rank.phase for rank in missing if rank.phase})
    phases = f" in {' and '.join(where)}" if where else ""
    states = {rank.process for rank in missing}
    why = ""
    if states and states <= _STOPPED:
        why = ", stopped by a signal"
    elif states == {_KERNEL_WAIT}:
        why = ", blocked in the kernel"
    waiting = f"; {rank_words([rank.rank for rank in others])} waited" if others else ""
    return (
        f"{rank_words([rank.rank for rank in missing])} stood still{phases} {after}{why}{waiting}"
    )


def _places(ranks: Sequence[HungRank]) -> str:
    phases = sorted({rank.phase for rank in ranks if rank.phase})
    return f", all in {' or '.join(phases)}" if phases else ""


def rank_words(ranks: Sequence[int]) -> str:
    """Ranks in words, at most eight by number: "rank 1", "ranks 0 and 2", "ranks 0 to 7"."""
    numbers = sorted(set(ranks))
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > _MAX_NAMED and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"ranks {numbers[0]} to {numbers[-1]}"
    if len(numbers) > _MAX_NAMED:
        listed = ", ".join(map(str, numbers[:_MAX_NAMED]))
        return f"ranks {listed} and {len(numbers) - _MAX_NAMED:,} others"
    return "ranks " + ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"


def _record(event: Event) -> HangRecord:
    entries, missing = event.fields.get("ranks"), event.fields.get("missing")
    entries = entries if isinstance(entries, list) else []
    ranks = tuple(rank for rank in map(_standing, entries) if rank is not None)
    return HangRecord(
        attempt=event.attempt,
        node=event.node,
        # The last of all ranks to stop: until then the job moved.
        begin=event.time - min((rank.idle_seconds for rank in ranks), default=0.0),
        end=None,
        ranks=ranks,
        missing=tuple(sorted({rank for rank in missing if _is_rank(rank)}))
        if isinstance(missing, list)
        else (),
    )


def _standing(entry: Any) -> HungRank | None:
    if not isinstance(entry, dict) or not _is_rank(entry.get("rank")):
        return None
    phase, step, process = (entry.get(name) for name in ("phase", "step", "process"))
    return HungRank(
        rank=entry["rank"],
        phase=phase if isinstance(phase, str) else "",
        step=step if _is_rank(step) else None,
        idle_seconds=_idle_seconds(entry.get("idle_seconds")),
        process=process if isinstance(process, str) else None,
    )


def _idle_seconds(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        return 0.0
    return max(0.0, float(value))


def _is_rank(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
