"""What a flight recorder kept of the last collectives, and who of the ranks is missing in them.

A rank waits for another when the collective it stands in has not been entered by that one. Who is
waited for and waits for nobody is the culprit; all who wait, in whatever group, are victims.
"""

from collections import Counter
from dataclasses import dataclass

from lockstep_reports.verdict.judge import Verdict
from lockstep_reports.wording import plural

_NAMED = 8
_MOST_EVIDENCE = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Flight:
    """One collective as one rank recorded it; times in ns by that rank's clock."""

    rank: int
    group: str
    sequence: int
    kind: str
    sizes: str
    created_ns: int | None
    completed_ns: int | None
    completed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """How far a rank is in a group: last collective handed over and last one completed."""

    entered: int
    completed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FlightLog:
    """Dumps of some ranks, joined.

    Attributes:
        ranks: ranks with a dump.
        groups: members by name of the group.
        names: what a group is for, by its name.
        standings: how far each rank is, by group and rank.
        flights: the recorded collectives, in the order of the dumps.
    """

    ranks: tuple[int, ...]
    groups: dict[str, tuple[int, ...]]
    names: dict[str, str]
    standings: dict[tuple[str, int], Standing]
    flights: tuple[Flight, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wait:
    waiter: int
    missing: int
    group: str
    sequence: int


def judge_flights(log: FlightLog) -> Verdict:
    """Who has not entered which collective; mismatched ones; nobody; or cannot tell."""
    if len(log.ranks) < 2:  # noqa: PLR2004  # a join needs two
        return Verdict(kind="unknown", evidence=("One rank's dump was read; others are needed.",))
    if odd := _mismatched(log):
        return odd
    waits = _waits(log) or _waits_for_undumped(log)
    if not waits:
        return _no_waits(log)
    waiting, missed = {wait.waiter for wait in waits}, {wait.missing for wait in waits}
    culprits = tuple(sorted(missed - waiting))
    if not culprits:
        evidence = "The ranks wait for each other in a circle: the order of collectives differs."
        return Verdict(kind="unknown", cause="deadlock", evidence=(evidence, *_told(log, waits)))
    return Verdict(
        kind="rank",
        ranks=culprits,
        phase=None,
        cause="hang",
        confidence=0.9 if len(culprits) <= max(1, len(log.ranks) // 2) else 0.5,
        evidence=_told(log, [wait for wait in waits if wait.missing in culprits]),
    )


def _waits(log: FlightLog) -> list[_Wait]:
    found = []
    for group, members in log.groups.items():
        there = {r: log.standings[group, r] for r in members if (group, r) in log.standings}
        for rank, own in there.items():
            next_one = own.completed + 1
            if own.entered >= next_one:
                found += [
                    _Wait(waiter=rank, missing=other, group=group, sequence=next_one)
                    for other, standing in there.items()
                    if standing.entered < next_one
                ]
    return found


def _waits_for_undumped(log: FlightLog) -> list[_Wait]:
    """Collectives that all who left a dump have entered, and members without a dump may not."""
    found = []
    for group, members in log.groups.items():
        gone = [rank for rank in members if rank not in log.ranks]
        for rank in members:
            own = log.standings.get((group, rank))
            if gone and own is not None and own.entered > own.completed:
                found += [
                    _Wait(waiter=rank, missing=other, group=group, sequence=own.completed + 1)
                    for other in gone
                ]
    return found


def _told(log: FlightLog, waits: list[_Wait]) -> tuple[str, ...]:
    lines: dict[tuple[int, str, int], list[int]] = {}
    for wait in waits:
        lines.setdefault((wait.missing, wait.group, wait.sequence), []).append(wait.waiter)
    kinds = {(flight.group, flight.sequence): flight.kind for flight in log.flights}
    told = []
    smallest_first = sorted(lines.items(), key=lambda line: (len(log.groups[line[0][1]]), line[0]))
    for (missing, group, sequence), waiters in smallest_first[:_MOST_EVIDENCE]:
        kind = kinds.get((group, sequence), "collective")
        name = log.names.get(group) or group
        dump = "" if missing in log.ranks else ", left no dump and"
        told.append(
            f"Rank {missing}{dump} has not entered {kind} {sequence} of group {name}; "
            f"{_listed(waiters)} {'waits' if len(waiters) == 1 else 'wait'} there."
        )
    idle = [r for r in sorted({w.missing for w in waits}) if _outstanding(log, r) == 0]
    if idle:
        told.append(f"{_listed(idle)}: no collective outstanding, so held up outside of them.")
    return tuple(told)


def _outstanding(log: FlightLog, rank: int) -> int | None:
    mine = [s for (_, r), s in log.standings.items() if r == rank]
    return sum(max(0, s.entered - s.completed) for s in mine) if mine else None


def _listed(ranks: list[int]) -> str:
    some = ", ".join(map(str, sorted(ranks)[:_NAMED])) + (", ..." if len(ranks) > _NAMED else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {some}".capitalize() if ranks else "nobody"


def _mismatched(log: FlightLog) -> Verdict | None:
    """The first collective that members of a group entered as different operations."""
    by_place: dict[tuple[str, int], dict[int, str]] = {}
    for flight in log.flights:
        if not flight.completed and flight.kind not in {"send", "recv", "send_recv"}:
            by_place.setdefault((flight.group, flight.sequence), {})[flight.rank] = flight.kind
    for (group, sequence), kinds in sorted(by_place.items(), key=lambda place: place[0][1]):
        counted = Counter(kinds.values()).most_common()
        if len(counted) < 2:  # noqa: PLR2004  # all the same
            continue
        told = f"Collective {sequence} of group {log.names.get(group) or group}: " + "; ".join(
            f"{_listed([r for r, k in kinds.items() if k == kind])} entered {kind}"
            for kind, _ in counted
        )
        if counted[0][1] == counted[1][1]:
            return Verdict(kind="unknown", cause="mismatched collectives", evidence=(told + ".",))
        odd = tuple(sorted(r for r, kind in kinds.items() if kind != counted[0][0]))
        return Verdict(
            kind="rank",
            ranks=odd,
            cause="mismatched collectives",
            confidence=0.9,
            evidence=(told + ".",),
        )
    return None


def _no_waits(log: FlightLog) -> Verdict:
    stuck = [r for r in log.ranks if _outstanding(log, r)]
    read = f"Dumps of {plural(len(log.ranks), 'rank')} were joined."
    if stuck:
        why = f"{_listed(stuck)} stand in collectives that every rank has entered: not a rank's."
        return Verdict(kind="unknown", evidence=(why, read))
    return Verdict(kind="nobody", evidence=("No rank waits for another in any collective.", read))
