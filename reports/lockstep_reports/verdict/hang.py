"""Names the rank that a hung job waits for, from Flight Recorder dumps.

Every rank waits for whoever its oldest outstanding operation needs. Named are the roots of these
waits: ranks that others wait for and that have nothing outstanding, or that are stuck in what
others have completed. Everybody else is a victim, in whatever group it waits.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from lockstep_reports.recording.collectives import FlightRecorderLog, RankOperation
from lockstep_reports.verdict.verdict import Verdict, unknown
from lockstep_reports.wording import list_ranks, plural

# Sends and receives of one batch are recorded within moments of each other.
_BATCH_NS = 1_000_000
# Nobody completes these before all have taken part.
_SYNCHRONISING = frozenset(
    {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "allreduce_coalesced"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """A rank needs another one for an operation."""

    waiter: int
    missing: int
    operation: RankOperation


@dataclass(kw_only=True, slots=True)
class WaitGraph:
    """Who waits for whom.

    Attributes:
        waits: of dumped ranks for dumped ranks.
        undumped: of dumped ranks for ranks without a dump, or of which nothing is known.
        stuck: the operation that a rank has not completed and its fellow members have.
        entered: operations that all members have entered, by the rank that is in one.
        unstarted: ranks whose device has not begun the oldest operation that others' devices run.
        queued: waits for ranks that have entered the operation behind an older one.
        idle: dumped ranks with nothing outstanding.
    """

    waits: list[Wait] = field(default_factory=list)
    undumped: list[Wait] = field(default_factory=list)
    stuck: dict[int, RankOperation] = field(default_factory=dict)
    entered: dict[int, RankOperation] = field(default_factory=dict)
    unstarted: set[int] = field(default_factory=set)
    queued: list[Wait] = field(default_factory=list)
    idle: tuple[int, ...] = ()

    def roots(self) -> tuple[int, ...]:
        """Ranks that others wait for and that wait for nobody themselves.

        They have nothing outstanding, are stuck in what their fellow members have completed, or
        their device has not begun what the others' devices run.
        """
        waiters = {wait.waiter for wait in (*self.waits, *self.queued)}
        missing = {wait.missing for wait in self.waits}
        held_up = (missing & (set(self.idle) | self.unstarted)) | (self.stuck.keys() - waiters)
        return tuple(sorted(held_up - waiters))

    def circle(self) -> tuple[int, ...]:
        """Ranks that wait for each other in a circle that nobody outside holds up; else empty."""
        after: dict[int, set[int]] = {}
        for wait in (*self.waits, *self.queued):
            after.setdefault(wait.waiter, set()).add(wait.missing)
        reached = {rank: _reachable(rank, after) for rank in after}
        for rank in sorted(after):
            ahead = reached[rank]
            # A circle with a way out waits for whoever is there.
            if rank in ahead and all(rank in reached.get(other, ()) for other in ahead):
                return tuple(sorted(ahead))
        return ()


def wait_graph(log: FlightRecorderLog) -> WaitGraph:
    """The graph of a log, from each rank's oldest outstanding operation."""
    behind = {rank for (_, rank), p in log.phases_at_hang.items() if p.entered > p.completed}
    idle = (rank for rank in log.ranks if rank not in behind and not log.outstanding.get(rank))
    graph = WaitGraph(idle=tuple(idle))
    for rank in log.ranks:
        for operation in _oldest(log, rank):
            if operation.is_point_to_point:
                _add_pair(graph, log, operation)
            else:
                _add_collective(graph, log, operation)
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


def _add_pair(graph: WaitGraph, log: FlightRecorderLog, operation: RankOperation) -> None:
    """A send or a receive waits for its peer, unless the peer stands in the other half of it."""
    for peer in operation.peers:
        wait = Wait(waiter=operation.rank, missing=peer, operation=operation)
        if peer not in log.outstanding:
            graph.undumped.append(wait)
            continue
        half = next((each for each in _oldest(log, peer) if _are_halves(each, operation)), None)
        if half is None:
            is_queued = any(_are_halves(each, operation) for each in log.outstanding[peer])
            (graph.queued if is_queued else graph.waits).append(wait)
        else:
            _add_entered(graph, wait, half)


def _are_halves(half: RankOperation, other: RankOperation) -> bool:
    return half.is_point_to_point and half.is_send != other.is_send and other.rank in half.peers


def _add_entered(graph: WaitGraph, wait: Wait, other: RankOperation) -> None:
    """Both are in it: where starts are recorded, the device that has not begun is waited for."""
    if wait.operation.is_started and other.is_started is False:
        graph.unstarted.add(wait.missing)
        graph.waits.append(wait)
    else:
        graph.entered.setdefault(wait.waiter, wait.operation)


def _add_collective(graph: WaitGraph, log: FlightRecorderLog, operation: RankOperation) -> None:
    """A collective waits for members that have not entered it."""
    rank, group, number = operation.rank, operation.group, operation.sequence
    others = [member for member in log.groups.get(group, ()) if member != rank]
    completed, inside = [], []
    for member in others:
        wait = Wait(waiter=rank, missing=member, operation=operation)
        phase = log.phases_at_hang.get((group, member))
        if member not in log.outstanding or phase is None:
            graph.undumped.append(wait)
        elif phase.completed >= number:
            completed.append(member)
        elif phase.entered < number:
            graph.waits.append(wait)
        else:
            inside.append(wait)
    if completed and (operation.kind in _SYNCHRONISING or len(completed) == len(others)):
        # Those who are through took its contribution: the rank itself is stuck.
        graph.stuck[rank] = operation
        graph.waits = [wait for wait in graph.waits if wait.waiter != rank]
        return
    for wait in inside:
        _add_inside(graph, log, wait)


def _add_inside(graph: WaitGraph, log: FlightRecorderLog, wait: Wait) -> None:
    """Adds a member that has entered the same collective, perhaps behind an older operation."""
    same = [
        each
        for each in log.outstanding.get(wait.missing, ())
        if (each.group, each.sequence) == (wait.operation.group, wait.operation.sequence)
        and not each.is_point_to_point
    ]
    oldest = _oldest(log, wait.missing)
    if same and same[0] not in oldest:
        graph.queued.append(wait)
    elif same:
        _add_entered(graph, wait, same[0])
    else:
        graph.entered.setdefault(wait.waiter, wait.operation)


def _reachable(start: int, after: dict[int, set[int]]) -> set[int]:
    """Ranks that a rank waits for, at first or any other hand."""
    reached: set[int] = set()
    ahead = after.get(start, set())
    while ahead:
        reached |= ahead
        ahead = set().union(*(after.get(rank, ()) for rank in ahead)) - reached
    return reached


_MAX_EVIDENCE = 16


def judge_hang(log: FlightRecorderLog) -> Verdict:
    """Who holds the others up; mismatched collectives; a deadlock; nobody; unknown."""
    if len(log.ranks) < 2:  # noqa: PLR2004  # a join needs two
        return unknown("One rank's dump was read; others are needed.")
    if mismatch := _mismatch(log):
        return mismatch
    graph = wait_graph(log)
    if circle := graph.circle():
        waits = [wait for wait in graph.waits if wait.waiter in circle]
        why = (
            f"{_listed(circle)} wait for each other in a circle that nobody else holds up:"
            " their order of operations differs."
        )
        return unknown(why, *_sentences(log, graph, waits), cause="deadlock")
    if roots := graph.roots():
        return _name_roots(log, graph, roots)
    if graph.undumped:
        return _judge_undumped(log, graph)
    return _judge_without_roots(log, graph)


def _name_roots(log: FlightRecorderLog, graph: WaitGraph, roots: tuple[int, ...]) -> Verdict:
    """The roots, unless they are most of the ranks."""
    waits = [wait for wait in graph.waits if wait.missing in roots]
    sentences = _sentences(log, graph, waits)
    if 2 * len(roots) > len(log.ranks):
        why = f"{plural(len(roots), 'rank')} of {len(log.ranks)} are out of step: no single rank's."
        return unknown(why, *sentences, cause="hang")
    return Verdict(kind="rank", ranks=roots, cause="hang", confidence=0.9, evidence=sentences)


def _judge_undumped(log: FlightRecorderLog, graph: WaitGraph) -> Verdict:
    """Unknown: a rank without a dump may be missing, or stand in the operation with the others."""
    waits = [wait for wait in graph.undumped if wait.missing not in log.ranks]
    silent = sorted({wait.missing for wait in waits})
    why = "The dumps do not show who has not entered what the others wait in."
    if silent:
        them = "it" if len(silent) == 1 else "them"
        why = (
            f"{_listed(silent)} left no dump, and the others wait for {them} or with {them}: look"
            " there first."
        )
    return unknown(why, *_sentences(log, graph, waits), cause="hang")


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
    num_dumps = f"Dumps of {plural(len(log.ranks), 'rank')} were joined."
    stuck = {*graph.entered, *(wait.waiter for wait in graph.waits)}
    if stuck:
        why = (
            f"{_listed(stuck)} stand in operations that every rank they need has entered: which"
            " rank or link holds them up is not in the dumps."
        )
        return unknown(why, num_dumps, cause="hang")
    if log.overwritten:
        why = (
            f"The rings of {_listed(log.overwritten).lower()} no longer hold the oldest"
            " operation that is outstanding; record more with TORCH_FR_BUFFER_SIZE."
        )
        return unknown(why, num_dumps, cause="hang")
    evidence = ("No rank waits for another in any collective.", num_dumps)
    return Verdict(kind="nobody", evidence=evidence)
