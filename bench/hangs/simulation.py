"""Simulated hangs of dp x pp x tp jobs.

Every rank's host enqueues ahead of its device; the device works in order, and gradients are reduced
on a stream of their own. A fault stops a host, a device or a link, or swaps two operations of one
rank; then all run until nothing moves.
"""

import random
from dataclasses import dataclass, field

from program import Layout, Op, Program, Schedule

FAULTS = ("host", "device", "link", "order", "none")


@dataclass
class Recorded:
    """An operation in a rank's recorder."""

    op: Op
    sequence: int
    numbers: dict[str, int]
    created: int
    started: bool = False
    done: bool = False
    peer: tuple[str, int] | None = None


@dataclass
class Rank:
    """A rank: how far its host, its device and its stream of gradients are in its program."""

    program: list[Op]
    host: int = 0
    main: int = 0
    side: int = 0
    stuck_host: int | None = None
    stuck_device: int | None = None
    enqueued: list[Op] = field(default_factory=list)
    side_queue: list[tuple[Op, int]] = field(default_factory=list)
    log: dict[int, list[Recorded]] = field(default_factory=dict)
    counts: dict[str, list[int]] = field(default_factory=dict)
    entries: list[Recorded] = field(default_factory=list)


class Simulation:
    """One job with one fault.

    Attributes:
        truth: ranks at fault; empty where no rank is.
    """

    def __init__(self, seed: int, fault: str) -> None:
        draw = self.draw = random.Random(seed)
        sizes = [draw.choice([1, 2, 2, 4]), draw.choice([1, 2, 2, 4]), draw.choice([1, 2, 4])]
        self.layout = Layout(*sizes)
        while self.layout.world <= 2:  # noqa: PLR2004  # two ranks can only point at each other
            self.layout.dp += 1
        self.ahead = draw.choice([1, 4, 20, 200])
        self.groups = self.layout.groups()
        schedule = Schedule(draw.choice([True, False]), draw.choice([2, 4, 6]), draw.randint(1, 3))
        steps = draw.randint(2, 4)
        self.ranks = [
            Rank(list(Program(self.layout, self.groups, rank, schedule).ops()) * steps)
            for rank in range(self.layout.world)
        ]
        self.truth: tuple[int, ...] = ()
        self.broken_group: str | None = None
        self.broken_from = 0
        self.clock = 0
        self._inject(fault, steps)
        while self._move():
            pass

    @property
    def hangs(self) -> bool:
        """Whether any rank has not come to the end of its program."""
        return any(rank.main < len(rank.program) for rank in self.ranks)

    def _inject(self, fault: str, steps: int) -> None:
        draw = self.draw
        slow_rank = draw.randrange(self.layout.world)
        rank = self.ranks[slow_rank]
        at = draw.randrange(len(rank.program) // steps // 2, len(rank.program) - 1)
        if fault == "host":
            rank.stuck_host, self.truth = at, (slow_rank,)
        elif fault == "device":
            computes = [i for i, op in enumerate(rank.program) if op.kind == "compute"]
            rank.stuck_device = next((i for i in computes if i >= at), computes[0])
            self.truth = (slow_rank,)
        elif fault == "link":
            used = [op.group for op in rank.program if op.group]
            self.broken_group, self.broken_from = draw.choice(used), draw.randint(1, 3)
        elif fault == "order":
            self._swap_two(rank, at)

    def _swap_two(self, rank: Rank, at: int) -> None:
        """Swaps neighbouring operations of different groups: the order of this rank differs."""
        ops = rank.program
        spots = [
            (i, j)
            for i in range(at, len(ops))
            for j in range(i + 1, min(i + 4, len(ops)))
            if ops[i].group and ops[j].group and ops[i].group != ops[j].group
            and not ops[i].is_async and not ops[j].is_async
        ]  # fmt: skip
        if spots:
            i, j = spots[0]
            ops[i], ops[j] = ops[j], ops[i]

    def _move(self) -> bool:
        moved = False
        for rank in self.ranks:
            while self._enqueue(rank):
                moved = True
        for index, rank in enumerate(self.ranks):
            while self._advance(index, rank):
                moved = True
        for name, members in self.groups.items():
            moved |= self._reduce(name, members)
        return moved

    def _enqueue(self, rank: Rank) -> bool:
        if rank.host >= len(rank.program) or rank.host == rank.stuck_host:
            return False
        if rank.host - rank.main > self.ahead:
            return False
        op = rank.program[rank.host]
        if op.kind == "sync" and (rank.main < rank.host or rank.side < len(rank.side_queue)):
            return False
        self.clock += 1
        self._record(rank, op)
        if op.is_async:
            rank.side_queue.append((op, rank.host))
        rank.host += 1
        return True

    def _record(self, rank: Rank, op: Op) -> None:
        if not op.group:
            return
        count = rank.counts.setdefault(op.group, [0, 0, 0])
        records = []
        if op.kind == "p2p":
            count[1] += 1
            for peer in op.peers:
                count[2] += 1
                records.append(Recorded(op, count[0], {"op": count[2], "p2p": count[1]},
                                        self.clock, peer=peer))  # fmt: skip
        else:
            count[0] += 1
            count[2] += 1
            records.append(Recorded(op, count[0], {"op": count[2], "p2p": count[1]}, self.clock))
        rank.log[rank.host] = records
        rank.entries += records

    def _advance(self, index: int, rank: Rank) -> bool:
        """The device's next operation of the main stream, where it can complete."""
        if rank.main >= rank.host or rank.main == rank.stuck_device:
            return False
        op = rank.program[rank.main]
        if op.kind == "wait" and rank.side < len(rank.side_queue):
            return False
        if op.group and not op.is_async:
            for record in rank.log[rank.main]:
                record.started = True
            return self._meet(index, rank, op)
        rank.main += 1
        return True

    def _meet(self, index: int, rank: Rank, op: Op) -> bool:
        """Completes the operation of all who take part, where all their devices stand in it."""
        if op.kind == "p2p":
            return self._exchange(index, rank, op)
        members, number = self.groups[op.group], rank.log[rank.main][0].sequence
        if self._is_broken(op.group, number):
            return False
        for member in members:
            front = self._front(self.ranks[member])
            if front is None or front.op.group != op.group or front.sequence != number:
                return False
        for member in members:
            fellow = self.ranks[member]
            fellow.log[fellow.main][0].done = True
            fellow.main += 1
        return True

    def _exchange(self, index: int, rank: Rank, op: Op) -> bool:
        """Completes those halves of a batch whose peers stand in the others."""
        records = rank.log[rank.main]
        if self._is_broken(op.group, records[0].numbers["p2p"]):
            return False
        for record in records:
            half = None if record.done else self._half(index, record)
            if half is not None:
                record.done = half.done = True
        is_complete = all(record.done for record in records)
        rank.main += is_complete
        return is_complete

    def _is_broken(self, group: str, number: int) -> bool:
        return group == self.broken_group and number >= self.broken_from

    def _front(self, rank: Rank) -> Recorded | None:
        if rank.main >= rank.host or rank.main == rank.stuck_device:
            return None
        op = rank.program[rank.main]
        return rank.log[rank.main][0] if op.group and not op.is_async else None

    def _half(self, index: int, record: Recorded) -> Recorded | None:
        """The peer's matching half, where the peer's device stands in it."""
        assert record.peer is not None
        way, peer = record.peer
        other = self.ranks[peer]
        if other.main >= other.host or other.main == other.stuck_device:
            return None
        if other.program[other.main].kind != "p2p":
            return None
        if self._is_broken(record.op.group, other.log[other.main][0].numbers["p2p"]):
            return None
        counterpart = ("recv" if way == "send" else "send", index)
        return next(
            (r for r in other.log[other.main] if r.peer == counterpart and not r.done), None
        )

    def _reduce(self, name: str, members: tuple[int, ...]) -> bool:
        """The next operation on the side streams of a group, where all devices have reached it."""
        ready = []
        for member in members:
            rank = self.ranks[member]
            if rank.side >= len(rank.side_queue):
                return False
            op, position = rank.side_queue[rank.side]
            if op.group != name or rank.main < position:
                return False
            ready.append(rank.log[position][0])
        for record in ready:
            record.started = True
        if self._is_broken(name, ready[0].sequence) or len({r.sequence for r in ready}) > 1:
            return False
        for member, record in zip(members, ready, strict=True):
            record.done = True
            self.ranks[member].side += 1
        return True
