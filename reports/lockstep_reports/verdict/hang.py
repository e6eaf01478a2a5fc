"""Names the rank that a hung job waits for, from Flight Recorder dumps.

A rank waits for another one that has not entered the collective which the first has entered.
A rank that others wait for, and that waits for nobody, is the culprit; the waiting ranks are
victims, in whatever group they wait.
"""

from collections import Counter
from dataclasses import dataclass

from lockstep_reports.recording.flight_recorder_log import FlightRecorderLog
from lockstep_reports.verdict.verdict import Verdict
from lockstep_reports.wording import plural

_MAX_NAMED_RANKS = 8
_MAX_EVIDENCE = 16
# Sends and receives of one sequence number legitimately differ between the two ranks of a pair.
_POINT_TO_POINT_KINDS = {"send", "recv", "send_recv"}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wait:
    waiter: int
    missing: int
    group: str
    sequence: int


def judge_hang(log: FlightRecorderLog) -> Verdict:
    """Which ranks have not entered which collective; mismatched collectives; nobody; unknown."""
    if len(log.ranks) < 2:  # noqa: PLR2004  # a join needs two
        return Verdict(kind="unknown", evidence=("One rank's dump was read; others are needed.",))
    if mismatch := _mismatch(log):
        return mismatch
    waits = _waits(log) or _waits_for_undumped(log)
    if not waits:
        return _without_waits(log)
    waiters, missing = {wait.waiter for wait in waits}, {wait.missing for wait in waits}
    culprits = tuple(sorted(missing - waiters))
    if not culprits:
        evidence = "The ranks wait for each other in a circle: the order of collectives differs."
        return Verdict(
            kind="unknown", cause="deadlock", evidence=(evidence, *_sentences(log, waits))
        )
    # When more than half of the ranks are missing, a few dumps may be stale or the wrong ones.
    is_minority = len(culprits) <= max(1, len(log.ranks) // 2)
    return Verdict(
        kind="rank",
        ranks=culprits,
        phase=None,
        cause="hang",
        confidence=0.9 if is_minority else 0.5,
        evidence=_sentences(log, [wait for wait in waits if wait.missing in culprits]),
    )


def _waits(log: FlightRecorderLog) -> list[_Wait]:
    """Pairs of dumped ranks of which one has entered a collective and the other has not."""
    waits = []
    for group, members in log.groups.items():
        phases = {
            rank: log.phases_at_hang[group, rank]
            for rank in members
            if (group, rank) in log.phases_at_hang
        }
        for rank, own in phases.items():
            sequence = own.completed + 1
            if own.entered >= sequence:
                waits += [
                    _Wait(waiter=rank, missing=other, group=group, sequence=sequence)
                    for other, phase in phases.items()
                    if phase.entered < sequence
                ]
    return waits


def _waits_for_undumped(log: FlightRecorderLog) -> list[_Wait]:
    """Collectives that all dumped members have entered; members without a dump may be missing."""
    waits = []
    for group, members in log.groups.items():
        undumped = [rank for rank in members if rank not in log.ranks]
        for rank in members:
            own = log.phases_at_hang.get((group, rank))
            if undumped and own is not None and own.entered > own.completed:
                waits += [
                    _Wait(waiter=rank, missing=other, group=group, sequence=own.completed + 1)
                    for other in undumped
                ]
    return waits


def _sentences(log: FlightRecorderLog, waits: list[_Wait]) -> tuple[str, ...]:
    """Evidence: a sentence for each missing rank and collective, small groups first."""
    waiters_of: dict[tuple[int, str, int], list[int]] = {}
    for wait in waits:
        waiters_of.setdefault((wait.missing, wait.group, wait.sequence), []).append(wait.waiter)
    kinds = {(entry.group, entry.sequence): entry.kind for entry in log.collectives}
    sentences = []
    smallest_first = sorted(
        waiters_of.items(), key=lambda entry: (len(log.groups[entry[0][1]]), entry[0])
    )
    for (missing, group, sequence), waiters in smallest_first[:_MAX_EVIDENCE]:
        kind = kinds.get((group, sequence), "collective")
        name = log.names.get(group) or group
        dump = "" if missing in log.ranks else ", left no dump and"
        sentences.append(
            f"Rank {missing}{dump} has not entered {kind} {sequence} of group {name}; "
            f"{_listed(waiters)} {'waits' if len(waiters) == 1 else 'wait'} there."
        )
    idle = [r for r in sorted({w.missing for w in waits}) if _num_outstanding(log, r) == 0]
    if idle:
        sentences.append(f"{_listed(idle)}: no collective outstanding, so held up outside of them.")
    return tuple(sentences)


def _num_outstanding(log: FlightRecorderLog, rank: int) -> int | None:
    """Collectives that a rank has entered and not completed; None when its phases are unknown."""
    phases = [phase for (_, member), phase in log.phases_at_hang.items() if member == rank]
    return sum(max(0, p.entered - p.completed) for p in phases) if phases else None


def _listed(ranks: list[int]) -> str:
    first = ", ".join(map(str, sorted(ranks)[:_MAX_NAMED_RANKS]))
    more = ", ..." if len(ranks) > _MAX_NAMED_RANKS else ""
    noun = "rank" if len(ranks) == 1 else "ranks"
    return f"{noun} {first}{more}".capitalize() if ranks else "nobody"


def _mismatch(log: FlightRecorderLog) -> Verdict | None:
    """The first collective that members of a group entered as different operations."""
    kinds_of: dict[tuple[str, int], dict[int, str]] = {}
    for entry in log.collectives:
        if not entry.completed and entry.kind not in _POINT_TO_POINT_KINDS:
            kinds_of.setdefault((entry.group, entry.sequence), {})[entry.rank] = entry.kind
    for (group, sequence), kinds in sorted(kinds_of.items(), key=lambda entry: entry[0][1]):
        counted = Counter(kinds.values()).most_common()
        if len(counted) < 2:  # noqa: PLR2004  # all the same
            continue
        sentence = f"Collective {sequence} of group {log.names.get(group) or group}: " + "; ".join(
            f"{_listed([r for r, k in kinds.items() if k == kind])} entered {kind}"
            for kind, _ in counted
        )
        if counted[0][1] == counted[1][1]:  # no majority, so no rank is the odd one out
            return Verdict(
                kind="unknown", cause="mismatched collectives", evidence=(sentence + ".",)
            )
        minority = tuple(sorted(r for r, kind in kinds.items() if kind != counted[0][0]))
        return Verdict(
            kind="rank",
            ranks=minority,
            cause="mismatched collectives",
            confidence=0.9,
            evidence=(sentence + ".",),
        )
    return None


def _without_waits(log: FlightRecorderLog) -> Verdict:
    """Nobody when no collective is outstanding; unknown when every rank has entered one."""
    stuck = [rank for rank in log.ranks if _num_outstanding(log, rank)]
    num_dumps = f"Dumps of {plural(len(log.ranks), 'rank')} were joined."
    if stuck:
        why = f"{_listed(stuck)} stand in collectives that every rank has entered: not a rank's."
        return Verdict(kind="unknown", evidence=(why, num_dumps))
    return Verdict(
        kind="nobody", evidence=("No rank waits for another in any collective.", num_dumps)
    )
