"""The wait-for graph of a hang: from each rank's oldest outstanding operation to whom it needs."""

from dataclasses import dataclass, field

from lockstep_reports.recording.collectives import FlightRecorderLog, RankOperation

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
