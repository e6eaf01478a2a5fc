"""Names the rank that a hung job waits for, from Flight Recorder dumps or NCCL's status socket.

Every rank waits for whoever its oldest outstanding operation needs. Named are the roots of these
waits: ranks that others wait for and that have nothing outstanding, or that are stuck in what
others have completed. Everybody else is a victim, in whatever group it waits.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from lockstep_outcomes.progress.launch_finding import LaunchFinding
from lockstep_reports.recording.recording import FlightRecorderLog, RankOperation
from lockstep_reports.verdict.verdict import Verdict, unknown
from lockstep_reports.wording import list_ranks, plural

# Sends and receives of one batch are recorded within moments of each other.
_BATCH_NS = 1_000_000
# Nobody completes these before all have taken part.
_SYNCHRONISING = frozenset(
    {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "allreduce_coalesced"}
)
_MAX_EVIDENCE = 16
State = Literal["outside", "unstarted", "queued", "inside", "through", "unseen"]
"""Where a rank is that an operation needs: it has not entered it; it is in it, and its device has
not begun what the other's runs; it has entered it behind an older one; it is in it like the other;
it has completed it; it left no dump, or nothing is known of it."""


class Wait(NamedTuple):
    """A dumped rank needs another one for an operation."""

    waiter: int
    missing: int
    operation: RankOperation
    state: State


@dataclass(kw_only=True, slots=True)
class WaitGraph:
    """Who waits for whom.

    Attributes:
        waits: for ranks that do not stand in the operation like the waiter itself.
        inside: ranks in an operation that some other one has entered too.
        stuck: the operation that a rank has not completed and its fellow members have.
        idle: dumped ranks with nothing outstanding.
    """

    waits: list[Wait] = field(default_factory=list)
    inside: set[int] = field(default_factory=set)
    stuck: dict[int, RankOperation] = field(default_factory=dict)
    idle: frozenset[int] = frozenset()

    def select(self, *states: State) -> list[Wait]:
        """The waits for ranks in one of these states."""
        return [wait for wait in self.waits if wait.state in states]

    def roots(self) -> tuple[int, ...]:
        """Ranks that others wait for and that wait for nobody themselves.

        They have nothing outstanding, are stuck in what their fellow members have completed, or
        their device has not begun what the others' devices run.
        """
        waiters = {wait.waiter for wait in self.select("outside", "unstarted", "queued")}
        held_up = {wait.missing for wait in self.select("outside")} & self.idle
        held_up |= {wait.missing for wait in self.select("unstarted")} | self.stuck.keys()
        return tuple(sorted(held_up - waiters))

    def circle(self) -> tuple[int, ...]:
        """Ranks that wait for each other in a circle that nobody outside holds up; else empty."""
        after: dict[int, set[int]] = {}
        for wait in self.select("outside", "unstarted", "queued"):
            after.setdefault(wait.waiter, set()).add(wait.missing)
        reached = {rank: _reachable(rank, after) for rank in after}
        for rank, ahead in sorted(reached.items()):
            # A circle with a way out waits for whoever is there.
            if rank in ahead and all(rank in reached.get(other, ()) for other in ahead):
                return tuple(sorted(ahead))
        return ()


def _reachable(start: int, after: dict[int, set[int]]) -> set[int]:
    """Ranks that a rank waits for, at first or any other hand."""
    reached: set[int] = set()
    ahead = after.get(start, set())
    while ahead:
        reached |= ahead
        ahead = set().union(*(after.get(rank, ()) for rank in ahead)) - reached
    return reached


def wait_graph(log: FlightRecorderLog) -> WaitGraph:
    """The graph of a log, from each rank's oldest outstanding operation."""
    behind = {rank for (_, rank), p in log.phases_at_hang.items() if p.entered > p.completed}
    idle = (rank for rank in log.ranks if rank not in behind and not log.outstanding.get(rank))
    graph = WaitGraph(idle=frozenset(idle))
    for rank in log.ranks:
        for operation in _oldest(log, rank):
            peers = operation.peers
            if not operation.is_point_to_point:
                peers = tuple(m for m in log.groups.get(operation.group, ()) if m != rank)
            states = {peer: _state(log, peer, operation) for peer in peers}
            is_through = [state == "through" for state in states.values()]
            if any(is_through) and (operation.kind in _SYNCHRONISING or all(is_through)):
                # Those who are through took its contribution: the rank itself is stuck.
                graph.stuck[rank] = operation
                continue
            if "inside" in states.values():
                graph.inside.add(rank)
            graph.waits += (
                Wait(rank, peer, operation, state)
                for peer, state in states.items()
                if state not in {"inside", "through"}
            )
    return graph


def _oldest(log: FlightRecorderLog, rank: int) -> tuple[RankOperation, ...]:
    """The oldest outstanding operation, with the sends and receives of the same batch."""
    operations = log.outstanding.get(rank, ())
    if not operations or rank in log.overwritten:
        return ()
    first = operations[0]
    if not first.is_point_to_point or first.created_ns is None:
        return (first,)
    return tuple(
        each
        for each in operations
        if each.is_point_to_point and (each.created_ns or 0) - first.created_ns <= _BATCH_NS
    )


def _state(log: FlightRecorderLog, peer: int, operation: RankOperation) -> State:
    """Where a rank is that an operation of another one needs."""
    phase = log.phases_at_hang.get((operation.group, peer))
    is_pair = operation.is_point_to_point
    if peer not in log.outstanding or (phase is None and not is_pair):
        return "unseen"
    if phase is not None and not is_pair and phase.completed >= operation.sequence:
        return "through"
    if phase is not None and not is_pair and phase.entered < operation.sequence:
        return "outside"
    same = [each for each in log.outstanding[peer] if _belong_together(each, operation)]
    if not same:
        # Of a collective its counters say that it has entered it; of a pair nothing does.
        return "outside" if is_pair else "inside"
    first = next((each for each in same if each in _oldest(log, peer)), None)
    if first is None:
        return "queued"
    # Where starts are recorded, the device that has not begun is waited for.
    return "unstarted" if operation.is_started and first.is_started is False else "inside"


def _belong_together(operation: RankOperation, other: RankOperation) -> bool:
    """Whether one is a rank's part of the collective, or the other half of the pair."""
    if other.is_point_to_point:
        is_half = operation.is_point_to_point and operation.is_send != other.is_send
        return is_half and other.rank in operation.peers
    is_same = (operation.group, operation.sequence) == (other.group, other.sequence)
    return is_same and not operation.is_point_to_point


def judge_hang(log: FlightRecorderLog) -> Verdict:
    """Who holds the others up; mismatched collectives; a deadlock; nobody; unknown."""
    if len(log.ranks) < 2:  # noqa: PLR2004  # a join needs two
        return unknown("One rank's dump was read; others are needed.")
    if mismatch := _mismatch(log):
        return mismatch
    graph = wait_graph(log)
    if circle := graph.circle():
        waits = [w for w in graph.select("outside", "unstarted") if w.waiter in circle]
        why = (
            f"{_listed(circle)} wait for each other in a circle that nobody else holds up:"
            " their order of operations differs."
        )
        return unknown(why, *_sentences(log, graph, waits), cause="deadlock")
    if roots := graph.roots():
        waits = [w for w in graph.select("outside", "unstarted") if w.missing in roots]
        evidence = _sentences(log, graph, waits)
        if 2 * len(roots) <= len(log.ranks):
            return Verdict(
                kind="rank", ranks=roots, cause="hang", confidence=0.9, evidence=evidence
            )
        count = f"{plural(len(roots), 'rank')} of {len(log.ranks)}"
        return unknown(f"{count} are out of step: no single rank's.", *evidence, cause="hang")
    return _judge_without_roots(log, graph)


def judge_launches(finding: LaunchFinding) -> Verdict:
    """The ranks that a hang is of, where several polls show them; nobody where ranks move."""
    remarks = [f"{remark[:1].upper()}{remark[1:]}." for remark in finding.remarks[:_MAX_EVIDENCE]]
    evidence = (finding.sentence, *remarks)
    ranks = tuple(each.rank for each in finding.late)
    if finding.kind == "hang" and all(each.is_of_job for each in finding.late):
        return Verdict(kind="rank", ranks=ranks, cause="hang", confidence=0.9, evidence=evidence)
    if finding.kind == "moving":
        return Verdict(kind="nobody", evidence=evidence)
    return unknown(*evidence, cause="hang" if finding.kind == "hang" else None)


def _sentences(log: FlightRecorderLog, graph: WaitGraph, waits: list[Wait]) -> tuple[str, ...]:
    """Evidence: a sentence for each missing rank and operation, small groups first."""
    waiters_of: dict[tuple[int, str, int, str], list[int]] = {}
    for wait in waits:
        each = wait.operation
        key = (wait.missing, each.group, each.sequence, each.kind)
        waiters_of.setdefault(key, []).append(wait.waiter)
    sentences = []
    smallest_first = sorted(waiters_of, key=lambda key: (len(log.groups.get(key[1], ())), key))
    for key in smallest_first[:_MAX_EVIDENCE]:
        missing, group, number, kind = key
        name, waiters = log.names.get(group) or group, waiters_of[key]
        state = "has" if missing in log.ranks else "may have"
        waiting = f"{_listed(waiters).lower()} {'waits' if len(waiters) == 1 else 'wait'}"
        where = f"{kind} {number} of group {name}; {waiting} there"
        if kind in {"send", "recv"}:
            where = f"the other half of the {kind} of group {name} that {waiting} in"
        sentences.append(f"Rank {missing} {state} not entered {where}.")
    for rank, operation in sorted(graph.stuck.items())[:_MAX_EVIDENCE]:
        name = log.names.get(operation.group) or operation.group
        sentences.append(
            f"Rank {rank} is stuck in {operation.kind} {operation.sequence} of group {name}, which"
            " others have completed."
        )
    idle = [rank for rank in sorted({wait.missing for wait in waits}) if rank in graph.idle]
    if idle:
        sentences.append(f"{_listed(idle)}: no collective outstanding, so held up outside of them.")
    return tuple(sentences)


def _listed(ranks: Collection[int]) -> str:
    noun = "rank" if len(ranks) == 1 else "ranks"
    return f"{noun} {list_ranks(sorted(ranks))}".capitalize() if ranks else "nobody"


def _mismatch(log: FlightRecorderLog) -> Verdict | None:
    """The first collective that members of a group entered as different operations."""
    kinds_of: dict[tuple[str, int], dict[int, str]] = {}
    for entry in log.collectives:
        if not entry.is_completed:
            kinds_of.setdefault((entry.group, entry.sequence), {})[entry.rank] = entry.kind
    for (group, sequence), kinds in sorted(kinds_of.items(), key=lambda entry: entry[0][1]):
        counted = Counter(kinds.values()).most_common()
        if len(counted) < 2:  # noqa: PLR2004  # all the same
            continue
        sentence = f"Collective {sequence} of group {log.names.get(group) or group}: " + "; ".join(
            f"{_listed([r for r, k in kinds.items() if k == kind])} entered {kind}"
            for kind, _ in counted
        )
        cause, evidence = "mismatched collectives", f"{sentence}."
        if counted[0][1] == counted[1][1]:  # no majority, so no rank is the odd one out
            return unknown(evidence, cause=cause)
        minority = tuple(sorted(r for r, kind in kinds.items() if kind != counted[0][0]))
        return Verdict(
            kind="rank", ranks=minority, cause=cause, confidence=0.9, evidence=(evidence,)
        )
    return None


def _judge_without_roots(log: FlightRecorderLog, graph: WaitGraph) -> Verdict:
    """Nobody when nothing is outstanding; unknown when all have entered what they stand in."""
    why = f"Dumps of {plural(len(log.ranks), 'rank')} were joined."
    stuck = graph.inside | {wait.waiter for wait in graph.select("outside", "unstarted")}
    if unseen := graph.select("unseen"):
        waits = [wait for wait in unseen if wait.missing not in log.ranks]
        silent = sorted({wait.missing for wait in waits})
        first = "The dumps do not show who has not entered what the others wait in."
        if silent:
            them = "it" if len(silent) == 1 else "them"
            first = (
                f"{_listed(silent)} left no dump, and the others wait for {them} or with {them}: "
                "look there first."
            )
        return unknown(first, *_sentences(log, graph, waits), cause="hang")
    if stuck:
        first = (
            f"{_listed(stuck)} stand in operations that every rank they need has entered: which"
            " rank or link holds them up is not in the dumps."
        )
    elif log.overwritten:
        first = (
            f"The rings of {_listed(log.overwritten).lower()} no longer hold the oldest"
            " operation that is outstanding; record more with TORCH_FR_BUFFER_SIZE."
        )
    else:
        return Verdict(
            kind="nobody", evidence=("No rank waits for another in any collective.", why)
        )
    return unknown(first, why, cause="hang")
