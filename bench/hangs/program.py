"""The programs that the ranks of a simulated dp x pp x tp job run."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Op:
    """An operation: a computation (no group), a collective, or a batch of sends and receives.

    ``wait`` holds the device until the gradients are reduced, ``sync`` the host until the device is
    through. An asynchronous one runs on the stream of the gradients.
    """

    kind: str
    group: str = ""
    peers: tuple[tuple[str, int], ...] = ()
    is_async: bool = False


@dataclass
class Layout:
    """How many replicas, stages and parts of a layer; ranks count parts first, stages last."""

    dp: int
    pp: int
    tp: int

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.dp * self.pp * self.tp

    def rank(self, replica: int, stage: int, part: int) -> int:
        """The rank of these coordinates."""
        return (stage * self.dp + replica) * self.tp + part

    def coordinates(self, rank: int) -> tuple[int, int, int]:
        """Replica, stage and part of a rank."""
        return rank // self.tp % self.dp, rank // (self.tp * self.dp), rank % self.tp

    def groups(self) -> dict[str, tuple[int, ...]]:
        """Members by number and axis of the group; the default group is 0."""
        groups = {"0": tuple(range(self.world))}
        for name, axis in (("tp", 2), ("dp", 0), ("pp", 1)):
            members: dict[tuple[int, ...], list[int]] = {}
            for rank in range(self.world):
                position = list(self.coordinates(rank))
                position[axis] = -1
                members.setdefault(tuple(position), []).append(rank)
            for ranks in members.values():
                groups[f"{len(groups)}:{name}"] = tuple(ranks)
        return groups


@dataclass(frozen=True)
class Schedule:
    """Order of micro-batches: all forwards first, or one forward and one backward in turn."""

    is_interleaved: bool
    batches: int
    layers: int


@dataclass(frozen=True)
class Program:
    """One step of one rank: the pipeline, the gradients, the norm over all ranks, the wait."""

    layout: Layout
    groups: dict[str, tuple[int, ...]]
    rank: int
    schedule: Schedule

    def _group(self, name: str) -> str:
        return next(g for g, m in self.groups.items() if g.endswith(f":{name}") and self.rank in m)

    def _neighbour(self, distance: int) -> int | None:
        replica, stage, part = self.layout.coordinates(self.rank)
        other = stage + distance
        return self.layout.rank(replica, other, part) if 0 <= other < self.layout.pp else None

    def _work(self, *, is_last: bool = False) -> Iterator[Op]:
        for layer in range(self.schedule.layers):
            yield Op("compute")
            if self.layout.tp > 1:
                yield Op(("all_reduce", "all_gather")[layer % 2], self._group("tp"))
            if is_last and self.layout.dp > 1:
                yield Op("reduce_scatter", self._group("dp"), is_async=True)

    def _swap(self, *pairs: tuple[str, int | None]) -> Iterator[Op]:
        peers = tuple((way, peer) for way, peer in pairs if peer is not None)
        if peers:
            yield Op("p2p", self._group("pp"), peers)

    def ops(self) -> Iterator[Op]:
        """The operations in the order in which the host enqueues them."""
        before, after = self._neighbour(-1), self._neighbour(1)
        batches, stage = self.schedule.batches, self.layout.coordinates(self.rank)[1]
        if self.layout.dp > 1:
            yield Op("all_gather", self._group("dp"))
        is_interleaved = self.schedule.is_interleaved
        warm = min(batches, self.layout.pp - stage - 1) if is_interleaved else batches
        rest = batches - warm
        for _ in range(warm):
            yield from self._swap(("recv", before))
            yield from self._work()
            yield from self._swap(("send", after))
        if rest:
            yield from self._swap(("recv", before))
        for index in range(rest):
            yield from self._work()
            yield from self._swap(("send", after), ("recv", after))
            yield from self._work(is_last=index == batches - 1)
            more = ("recv", before if index < rest - 1 else None)
            yield from self._swap(("send", before), more)
        for index in range(warm):
            yield from self._swap(("recv", after))
            yield from self._work(is_last=rest + index == batches - 1)
            yield from self._swap(("send", before))
        yield from (Op("wait"), Op("all_reduce", "0"), Op("sync"))
