"""Hangs by the events of a job's launchers: who stood still, since when, and until when."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from lockstep_outcomes.progress.hangs import Hang
from lockstep_outcomes.progress.missing import (
    FINISHED,
    Launched,
    Missing,
    RankState,
    find_missing,
    places,
    rank_words,
)
from lockstep_outcomes.progress.rank_progress import is_count
from lockstep_records.events.event import Event

_MAX_GROUPS = 16  # of a rank in an event; a rank of many meshes has fewer


@dataclass(frozen=True, kw_only=True, slots=True)
class HangRecord:
    """One hang on one node.

    Attributes:
        begin: wall clock of the last progress of any rank, seconds since 1970.
        end: wall clock at which its ranks moved on; None where nobody saw that.
        ranks: of its node.
        found: whom they wait for, by the ranks of all nodes that hung at that time.
    """

    attempt: int
    node: str | None
    begin: float
    end: float | None
    ranks: tuple[RankState, ...]
    found: Missing
    world_size: int | None = None

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that the others waited for; empty where none stands apart."""
        return self.found.ranks

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
            _join_nodes(hangs)
            continue
        open_hangs = [at for at, h in enumerate(hangs) if h.node == event.node and h.end is None]
        for at in open_hangs:
            hangs[at] = replace(hangs[at], end=event.time)
    return hangs


def _join_nodes(hangs: list[HangRecord]) -> None:
    """Judges the nodes that hang now by the ranks of them all, of each node the newest."""
    newest = {hang.node: hang for hang in hangs if hang.end is None}
    if len(newest) < 2:  # noqa: PLR2004  # one node knows nothing of another
        return
    states = {state.rank: state for hang in newest.values() for state in hang.ranks}
    sizes = [hang.world_size for hang in newest.values() if hang.world_size is not None]
    found = find_missing(tuple(states.values()), max(sizes, default=None))
    for at, hang in enumerate(hangs):
        if hang.end is None and found.kind not in {"unseen", "nobody"}:
            hangs[at] = replace(hang, found=found)


def record_of(hang: Hang, attempt: int, now: float) -> HangRecord:
    """A hang that was found on this node just now."""
    return HangRecord(
        attempt=attempt,
        node=None,
        begin=now - min(rank.idle_seconds for rank in hang.states),
        end=None,
        ranks=hang.states,
        found=hang.missing,
    )


def hang_fields(hang: Hang) -> dict[str, Any]:
    """The fields of a hang's event; the ranks as ``hangs_of`` reads them."""
    entries = [
        {name: value for name, value in asdict(state).items() if value not in ({}, None)}
        | {"step": state.step, "process": state.process}
        for state in hang.states
    ]
    return {
        "limit_seconds": hang.limit_seconds,
        "ranks": entries,
        "missing": list(hang.missing.ranks),
        "kind": hang.missing.kind,
        "why": hang.missing.why,
        "world_size": len(hang.states) + hang.num_unseen,
    }


def standstill_words(hang: HangRecord) -> str:
    """Who stood still where, why it is they, and who waited; without a full stop."""
    after = "before its first step" if hang.step is None else f"after step {hang.step}"
    missing = [rank for rank in hang.ranks if rank.rank in hang.missing]
    others = [rank for rank in hang.ranks if rank.rank not in hang.missing]
    if not missing:
        why = hang.found.why
        if hang.missing:
            why = f"{rank_words(hang.missing)} did not come{places(others)}"
        return f"no rank made progress {after}: {why}"
    where = sorted({rank.phase for rank in missing if rank.phase})
    stood = f"stood still in {' and '.join(where)}" if where else "stood still"
    if where == [FINISHED]:
        stood = f"had ended {'its loop' if len(missing) == 1 else 'their loops'}"
    own = [rank.step for rank in missing if rank.step is not None]
    after = f"after step {max(own)}" if own else "before its first step"
    why = f", {hang.found.why}" if hang.found.why else ""
    begun = [rank.step + 1 for rank in others if rank.step is not None]
    waited = f"waited in step {min(begun)}" if where == [FINISHED] and begun else "waited"
    waiting = f"; {rank_words([rank.rank for rank in others])} {waited}" if others else ""
    return f"{rank_words(hang.missing)} {stood} {after}{why}{waiting}"


def _record(event: Event) -> HangRecord:
    entries, missing = event.fields.get("ranks"), event.fields.get("missing")
    entries = entries if isinstance(entries, list) else []
    ranks = tuple(rank for rank in map(_state, entries) if rank is not None)
    world_size = event.fields.get("world_size")
    size = world_size if is_count(world_size) else None
    found = find_missing(ranks, size) if ranks else Missing((), "nobody", "")
    if isinstance(missing, list) and not found.ranks:
        # Whom the launcher of that time named by what is not in its event.
        found = replace(found, ranks=tuple(sorted({rank for rank in missing if is_count(rank)})))
    return HangRecord(
        attempt=event.attempt,
        node=event.node,
        # The last of all ranks to stop: until then the job moved.
        begin=event.time - min((rank.idle_seconds for rank in ranks), default=0.0),
        end=None,
        ranks=ranks,
        found=found,
        world_size=size,
    )


def _state(entry: Any) -> RankState | None:
    if not isinstance(entry, dict) or not is_count(entry.get("rank")):
        return None
    phase, step, process, device, rounds = (
        entry.get(name) for name in ("phase", "step", "process", "device", "rounds")
    )
    return RankState(
        rank=entry["rank"],
        phase=phase if isinstance(phase, str) else "",
        step=step if is_count(step) else None,
        rounds=rounds if is_count(rounds) else None,
        idle_seconds=_idle_seconds(entry.get("idle_seconds")),
        process=process if isinstance(process, str) else None,
        device=device if device in {"pending", "passed"} else None,
        launched=_launched(entry.get("launched")),
    )


def _launched(value: Any) -> dict[str, Launched]:
    """Collectives by group, as ``Launched`` has them."""
    found = {}
    for group, numbers in list(value.items())[:_MAX_GROUPS] if isinstance(value, dict) else ():
        given = numbers if isinstance(numbers, list) else [None]
        number, operation, oldest, times = (*given, *(None, "", None, 0)[len(given) :])[:4]
        if is_count(number) and isinstance(operation, str):
            is_pair = isinstance(oldest, list) and len(oldest) == 2 and is_count(oldest[0])  # noqa: PLR2004  # a pair
            pair = (oldest[0], str(oldest[1])) if is_pair else None
            found[str(group)] = Launched(number, operation, pair, times if is_count(times) else 0)
    return found


def _idle_seconds(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        return 0.0
    return max(0.0, float(value))
