"""Events that follow from the rank pages of a job on this node: resumes, checkpoints, goodput.

The training process only writes its pages; who watches it, the launcher or the agent, writes these
events. A poll sees the newest checkpoint: of several between two polls it reports the last.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_catalogue.vocabulary import ENDED_PHASES, PAUSE_PHASES, PHASE_STATES, GoodputState
from lockstep_outcomes.progress.goodput import goodput_ns
from lockstep_outcomes.progress.hangs import Hang, is_count
from lockstep_outcomes.progress.missing import (
    FINISHED,
    Launched,
    Missing,
    RankState,
    find_missing,
    places,
    rank_words,
)
from lockstep_records.events.event import Event
from lockstep_records.files.jobs import highest_step_before
from lockstep_records.page.reader import Page

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


GOODPUT_SECONDS = 60.0
"""Time between two reports of goodput of a running attempt."""
_REPLICA_AXES = frozenset({"dp", "fsdp"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """Times of an attempt on a node, seconds since 1970.

    Attributes:
        begin: when its launcher began to start it; the time until a rank's process is start-up.
        ends: end of each rank's process, by rank; a rank without one is running.
        over: when the attempt was over on the node; None while it runs.
        num_gpus: GPUs of the node that are allocated to the job; None where unknown.
        hang_begin: last progress before a hang of which no end was seen; None without.
        stood: phase in which each rank stood then, by rank; others waited.
    """

    begin: float | None = None
    ends: Mapping[int, float] | None = None
    over: float | None = None
    num_gpus: int | None = None
    hang_begin: float | None = None
    stood: Mapping[int, str] = field(default_factory=dict)


class ProgressEvents:
    """Compares the pages of each poll with those of the poll before."""

    def __init__(self, job_id: str, clock: Callable[[], float] = time.time) -> None:
        self._job_id, self._clock = job_id, clock
        self._checkpoints: dict[int, int] = {}
        self._resumed: set[int] = set()
        self._num_failed: dict[tuple[int, str, str], int] = {}
        self._next_goodput_seconds = 0.0

    def poll(self, pages: list[Page], moments: Moments, *, is_last: bool = False) -> list[Event]:
        """What is new in the pages of one attempt, and its goodput at the last call."""
        if not pages:
            return []
        attempt = int(pages[0].identity["attempt"])
        events = [
            *self._failures(pages, attempt),
            *self._resumes(pages, attempt),
            *self._new_checkpoints(pages, attempt),
        ]
        now = self._clock()
        if is_last or now >= self._next_goodput_seconds:
            self._next_goodput_seconds = now + GOODPUT_SECONDS
            fields = goodput_fields(pages, moments, now, time.monotonic_ns())
            events.append(self._event("goodput", attempt, fields, now))
        return events

    def _resumes(self, pages: list[Page], attempt: int) -> Iterator[Event]:
        """A resume once an attempt, by the first page that tells of one."""
        if attempt in self._resumed:
            return
        page = next((p for p in pages if p.periodic["restored_step"] is not None), None)
        if page is None:
            return
        self._resumed.add(attempt)
        step, requested = page.periodic["restored_step"], page.periodic["restore_requested"]
        passed_over = page.periodic["passed_over"]
        before = highest_step_before(page.path)
        fields = {
            "step": step,
            "fallback": bool(passed_over) or (requested is not None and requested != step),
            "passed_over": passed_over,
            "seconds": page.periodic["restore_seconds"],
        }
        if before is not None:
            fields["steps_lost"] = max(0, before - step)
        yield self._event("job_resumed", attempt, fields, self._clock())

    def _failures(self, pages: list[Page], attempt: int) -> Iterator[Event]:
        """Checkpoints and restores that failed since the poll before.

        Ranks take part in the same ones, so the highest count of a rank is that of the node.
        """
        totals = {
            ("checkpoint_failed", "failed"): max(p.state["checkpoints"]["failed"] for p in pages),
            ("checkpoint_failed", "invalid"): max(p.periodic["checkpoints_invalid"] for p in pages),
            ("restore_failed", ""): max(p.periodic["restores"]["failed"] for p in pages),
        }
        for (kind, outcome), total in totals.items():
            if total > self._num_failed.get((attempt, kind, outcome), 0):
                self._num_failed[attempt, kind, outcome] = total
                fields = {"total": total, **({"outcome": outcome} if outcome else {})}
                yield self._event(kind, attempt, fields, self._clock())

    def _new_checkpoints(self, pages: list[Page], attempt: int) -> Iterator[Event]:
        """A checkpoint is durable when every rank of the node says so; one event a step."""
        steps = [page.state["checkpoint_step"] for page in pages]
        if None in steps:
            return
        step = min(steps)
        if step <= self._checkpoints.get(attempt, -1):
            return
        self._checkpoints[attempt] = step
        page = max(pages, key=lambda p: p.state["checkpoint_wall_ns"] or 0)
        fields: dict[str, Any] = {"step": step}
        # The time of writing is that of the newest write, which may be a later one that failed.
        if page.periodic["write_step"] == step:
            fields["seconds"] = page.periodic["write_seconds"]
        if page.periodic["checkpoints_verified"]:
            fields["verified"] = True
        wall_ns = page.state["checkpoint_wall_ns"]
        moment = self._clock() if wall_ns is None else wall_ns / 1e9
        yield self._event("checkpoint_durable", attempt, fields, min(moment, self._clock()))

    def _event(self, kind: str, attempt: int, fields: dict[str, Any], moment: float) -> Event:
        return Event(kind=kind, job_id=self._job_id, attempt=attempt, fields=fields, time=moment)


_STEPPING = frozenset(STEP_PHASES) - frozenset(PAUSE_PHASES)


def goodput_fields(
    pages: list[Page], moments: Moments, now: float, monotonic_ns: int
) -> dict[str, Any]:
    """Fields of a goodput event: seconds of the node's ranks by state.

    The time from ``begin`` to a rank's process is start-up, and from its end to that of the attempt
    ``other``: the leaving of others is waited for. Time in communication beyond that of the rank
    that needs least, among ranks with the same place in the model, is waiting for stragglers. GPUs
    beyond the ranks are idle.

    Args:
        pages: of the ranks of this node in one attempt.
        moments: of the attempt.
        now: wall clock.
        monotonic_ns: monotonic clock at the same moment.
    """
    spent_by_rank = {
        int(page.identity["rank"]): _rank_ns(page, moments, now, monotonic_ns) for page in pages
    }
    _separate_waits(pages, spent_by_rank)
    totals: dict[str, int] = {}
    for spent in spent_by_rank.values():
        for state, ns in spent.items():
            totals[state] = totals.get(state, 0) + ns
    idle = (moments.num_gpus or 0) - len(pages)
    if idle > 0 and moments.begin is not None:
        until = now if moments.over is None else moments.over
        totals["idle"] = round(idle * max(0.0, until - moments.begin) * 1e9)
    steps = [page.state["step"] for page in pages if page.state["step"] is not None]
    fields: dict[str, Any] = {
        "rank_seconds": {state: round(ns / 1e9, 6) for state, ns in totals.items() if ns},
        "num_ranks": len(pages) + max(0, idle),
        "tokens": sum(page.state["tokens"] for page in pages),
    }
    if moments.num_gpus is not None:
        fields["num_gpus"] = moments.num_gpus
    if steps:
        fields["last_step"] = max(steps)
    return fields


def _rank_ns(
    page: Page, moments: Moments, now: float, monotonic_ns: int
) -> dict[GoodputState, int]:
    rank = int(page.identity["rank"])
    end = (moments.ends or {}).get(rank)
    until_ns = monotonic_ns if end is None else monotonic_ns - round((now - end) * 1e9)
    # A page that says its rank has ended is not waited for, also where no launcher saw the end.
    if end is None and page.phase in ENDED_PHASES:
        until_ns = page.progress_ns
    spent = dict(goodput_ns(page, until_ns))
    if end is None and moments.over is None and page.phase in _STEPPING:
        # What it waits for now may turn out to be a hang, and no total may fall.
        settled = goodput_ns(page, page.progress_ns)
        spent = spent if spent["hang"] > settled["hang"] else dict(settled)
    if page.phase in ENDED_PHASES:
        # A rank's process ends after its last update.
        leaving_ns = max(0, until_ns - page.progress_ns)
        moved_ns = min(spent["unknown"], leaving_ns)
        spent["unknown"] -= moved_ns
        spent["other"] += moved_ns
        if moments.hang_begin is not None:
            # It stood until a time-out or a person ended the hang: in a step that never ended.
            state = PHASE_STATES.get(moments.stood.get(rank, ""), "communication")
            stood_ns = round((page.progress_wall_seconds - moments.hang_begin) * 1e9)
            moved_ns = min(spent[state], max(0, stood_ns))
            spent[state] -= moved_ns
            spent["hang"] += moved_ns
    if moments.begin is not None:
        process_seconds = page.periodic["process_seconds"] or 0.0
        born = page.identity["start_wall_ns"] / 1e9 - process_seconds
        spent["startup"] += max(0, round((born - moments.begin) * 1e9))
    if end is not None and moments.over is not None:
        spent["other"] += max(0, round((moments.over - end) * 1e9))
    return spent


def _separate_waits(
    pages: Iterable[Page], spent_by_rank: dict[int, dict[GoodputState, int]]
) -> None:
    """Moves the communication beyond the least of comparable ranks to waiting for stragglers."""
    groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for page in pages:
        mesh = dict(page.identity["mesh"])
        part = tuple(sorted((axis, at) for axis, at in mesh.items() if axis not in _REPLICA_AXES))
        rank = int(page.identity["rank"])
        if page.periodic["independent_rounds"]:
            part = (("rank", rank),)  # it waits for no other
        groups.setdefault(part, []).append(rank)
    for ranks in groups.values():
        least_ns = min(spent_by_rank[rank]["communication"] for rank in ranks)
        for rank in ranks:
            spent = spent_by_rank[rank]
            spent["straggler_wait"] = spent["communication"] - least_ns
            spent["communication"] = least_ns


def moments_of(events: Sequence[Event], attempt: int, over: float | None = None) -> Moments:
    """The times of an attempt by the events of its launcher; ``over`` is None while it runs."""
    begin: float | None = None
    launched: float | None = None
    ends: dict[int, float] = {}
    num_gpus: int | None = None
    for event in events:
        if event.kind == "job_started":
            launched = event.time
        elif event.kind == "attempt_started":
            if event.attempt == attempt:
                # The first attempt begins with its launcher, later ones when their ranks start.
                begin = event.time if launched is None else launched
                granted = event.fields.get("num_gpus")
                num_gpus = granted if isinstance(granted, int) else None
            launched = None
        elif event.kind == "rank_ended" and event.attempt == attempt:
            rank = event.fields.get("rank")
            if isinstance(rank, int):
                ends[rank] = event.time
    begin = launched if begin is None else begin
    lasting = [hang for hang in hangs_of(events, attempt) if hang.end is None]
    return Moments(
        begin=begin,
        ends=ends,
        over=over,
        num_gpus=num_gpus,
        hang_begin=max((hang.begin for hang in lasting), default=None),
        stood={state.rank: state.phase for hang in lasting for state in hang.ranks},
    )
