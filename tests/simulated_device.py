"""Ranks whose hosts run ahead of their devices, as on an H100.

A launch returns at once until a thousand wait; then it blocks wherever the host is.

A program is the calls of one rank's host. A device takes the launches of each stream in order; a
collective begins when all members of its group
have it at the head, and never where they called different operations. What nothing waits for
anymore is the place in which each host stands.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

QUEUE_LENGTH = 1024
LAUNCH_SECONDS = 5e-6
COMPUTE = "compute"


@dataclass(frozen=True)
class Phase:
    """The host enters a phase of a step."""

    name: str
    step: int


@dataclass(frozen=True)
class HostWork:
    """The host computes; `inf` is a host that never comes back."""

    seconds: float


@dataclass(frozen=True)
class Kernel:
    """A launch on the compute stream; `inf` is a kernel that never ends."""

    seconds: float


@dataclass(frozen=True)
class Collective:
    """A launch on the group's own stream, after the kernels so far; a `Join` waits for it."""

    group: str
    operation: str
    seconds: float = 1e-4


@dataclass(frozen=True)
class Join:
    """The next kernel waits for the group's collectives launched so far."""

    group: str


@dataclass(frozen=True)
class CopyToHost:
    """A synchronous copy (`loss.item()`, pageable memory): the host waits for its device."""


Call = Phase | HostWork | Kernel | Collective | Join | CopyToHost
Program = Callable[[int], Iterator[Call]]


@dataclass
class Launched:
    """One operation in a stream. `end` is None until it is known, and `inf` where it never ends."""

    seconds: float
    start: float
    collective: tuple[str, int] | None = None
    operation: str = ""
    end: float | None = None
    unfinished: int = 0
    behind: list["Launched"] = field(default_factory=list)


@dataclass
class SimulatedRank:
    """Where one rank stands, and events of its phases in the stream of its device."""

    rank: int
    calls: Iterator[Call]
    seconds: float = 0.0
    step: int = 0
    phase: str = "other"
    streams: dict[str, list[Launched]] = field(default_factory=dict)
    counts: dict[str, tuple[int, str]] = field(default_factory=dict)
    events: list[tuple[int, str, Launched]] = field(default_factory=list)
    finished: bool = False
    call: Call | None = None

    @property
    def device_pending(self) -> bool:
        """Whether the device still has work: what a query of the last event tells."""
        return any(stream and stream[-1].end in (None, inf) for stream in self.streams.values())

    def device_seconds(self) -> Iterator[tuple[int, str, float]]:
        """Step, phase and seconds of what its device went through, in order."""
        for (step, phase, event), (_, _, following) in pairwise(self.events):
            if event.end is not None and following.end is not None:
                yield step, phase, following.end - event.end

    def oldest(self, group: str) -> tuple[int, str] | None:
        """Number and operation of the group's first collective that has not completed."""
        left = (each for each in self.streams.get(group, ()) if each.end in (None, inf))
        first = next(left, None)
        return (
            None
            if first is None or first.collective is None
            else (first.collective[1], first.operation)
        )


class SimulatedDevices:
    """Runs the programs of all ranks to their ends, or to where they stand for ever."""

    def __init__(
        self,
        program: Program,
        groups: dict[str, tuple[int, ...]],
        dead: tuple[str, int] | None = None,
    ) -> None:
        """`groups`: members by name. `dead`: a collective that a broken link never completes."""
        members = sorted({rank for ranks in groups.values() for rank in ranks})
        self.groups, self.dead = groups, dead
        self.ranks = {rank: SimulatedRank(rank, program(rank)) for rank in members}
        self.waiting: dict[tuple[str, int], list[Launched]] = {}

    def run(self) -> dict[int, SimulatedRank]:
        moved = [True]
        while any(moved):
            moved = [self._advance(rank) for rank in self.ranks.values()]
        return self.ranks

    def _advance(self, rank: SimulatedRank) -> bool:
        """Lets the host run until it waits for what is not known yet. Whether it moved."""
        moved = False
        while not rank.finished:
            if rank.call is None and (following := next(rank.calls, None)) is None:
                rank.finished = True
                return True
            rank.call = rank.call or following
            if not self._perform(rank, rank.call):
                return moved
            rank.call, moved = None, True
        return moved

    def _perform(self, rank: SimulatedRank, call: Call | None) -> bool:
        if isinstance(call, Phase):
            rank.step, rank.phase = call.step, call.name
            self._record(rank, call.name)
        elif isinstance(call, HostWork):
            if call.seconds == inf:
                return False
            rank.seconds += call.seconds
        elif isinstance(call, CopyToHost):
            stream = rank.streams.get(COMPUTE)
            end = stream[-1].end if stream else 0.0
            if end is None or end == inf:
                return False
            rank.seconds = max(rank.seconds, end)
        elif isinstance(call, Join):
            self._record(rank, "sync")
            self._record(rank, rank.phase, *rank.streams.get(call.group, [])[-1:])
        elif call is not None:
            return self._launch(rank, call)
        return True

    def _record(self, rank: SimulatedRank, phase: str, *after: Launched) -> None:
        """Puts an event into the compute stream, behind other streams' work where that is named."""
        compute = rank.streams.setdefault(COMPUTE, [])
        compute.append(Launched(0.0, rank.seconds))
        rank.events.append((rank.step, phase, compute[-1]))
        self._enqueue(compute[-1], [*compute[-2:-1], *after])

    def _launch(self, rank: SimulatedRank, call: Kernel | Collective) -> bool:
        name = call.group if isinstance(call, Collective) else COMPUTE
        stream, compute = rank.streams.setdefault(name, []), rank.streams.setdefault(COMPUTE, [])
        if len(stream) >= QUEUE_LENGTH:
            free = stream[-QUEUE_LENGTH].end
            if free is None or free == inf:
                return False
            rank.seconds = max(rank.seconds, free)
        rank.seconds += LAUNCH_SECONDS
        launched = Launched(call.seconds, rank.seconds)
        before = [*stream[-1:], *(compute[-1:] if stream is not compute else [])]
        stream.append(launched)
        if isinstance(call, Collective):
            number = rank.counts.get(name, (0, ""))[0] + 1
            rank.counts[name] = number, call.operation
            launched.collective, launched.operation = (name, number), call.operation
            self.waiting.setdefault((name, number), []).append(launched)
        self._enqueue(launched, before)
        return True

    def _enqueue(self, launched: Launched, before: list[Launched]) -> None:
        """Waits for what comes before it; what ends at once lets those behind it go."""
        for earlier in before:
            if earlier.end is None:
                launched.unfinished += 1
                earlier.behind.append(launched)
            else:
                launched.start = max(launched.start, earlier.end)
        ready = [launched]
        while ready:
            for ended in self._settle(ready.pop()):
                for later in ended.behind:
                    later.unfinished -= 1
                    later.start = max(later.start, ended.end or 0.0)
                    ready.append(later)

    def _settle(self, launched: Launched) -> list[Launched]:
        """The operations whose ends are known by this one."""
        peers = [launched] if launched.collective is None else self.waiting[launched.collective]
        complete = launched.collective is None or len(peers) == len(
            self.groups[launched.collective[0]]
        )
        if not complete or any(peer.unfinished or peer.end is not None for peer in peers):
            return []
        never = launched.collective is not None and (
            launched.collective == self.dead or len({peer.operation for peer in peers}) > 1
        )
        end = (
            inf
            if never
            else max(peer.start for peer in peers) + max(peer.seconds for peer in peers)
        )
        for peer in peers:
            peer.end = end
        return peers
