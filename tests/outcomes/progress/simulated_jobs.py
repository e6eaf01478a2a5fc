"""Jobs for the simulated devices, healthy or with a fault: the programs of their ranks."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from simulated_device import (
    Call,
    Collective,
    CopyToHost,
    HostWork,
    Join,
    Kernel,
    Phase,
    SimulatedDevices,
    SimulatedRank,
)


@dataclass(frozen=True)
class Fault:
    """What one rank does in a step that no other does.

    `halt`: a phase in which its host stops; `kernel`, one that never ends; or a collective too
    `few`, too `many`, or an `other_operation`.
    """

    rank: int
    halt: str
    step: int = 12


@dataclass(frozen=True)
class Job:
    """`parallel`: ddp, fsdp, or pipeline (of `stages`). `copies`: ranks that read each loss."""

    ranks: int
    faults: tuple[Fault, ...] = ()
    parallel: str = "ddp"
    stages: int = 1
    launches: int = 40
    copies: str = "none"
    steps: int = 24
    checkpoint_every: int = 6
    dead: tuple[str, int] | None = None

    @property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """The ranks of one stage reduce gradients, those of one replica hand activations on."""
        if self.stages == 1:
            return {"world": tuple(range(self.ranks))}
        replicas = self.ranks // self.stages
        stages = {
            f"dp{stage}": tuple(range(stage * replicas, (stage + 1) * replicas))
            for stage in range(self.stages)
        }
        links = {f"pp{rank}": (rank, rank + replicas) for rank in range(self.ranks - replicas)}
        back = {f"back{rank}": (rank, rank + replicas) for rank in range(self.ranks - replicas)}
        return stages | links | back | {"world": tuple(range(self.ranks))}

    def run(self) -> dict[int, SimulatedRank]:
        """Where every rank stands in the end."""
        return SimulatedDevices(self.program, self.groups, self.dead).run()

    def program(self, rank: int) -> Iterator[Call]:
        """The calls of one rank's host."""
        for step in range(self.steps):
            halts = {
                fault.halt for fault in self.faults if fault.rank == rank and fault.step == step
            }
            for call in self._step(rank, step, halts):
                yield call
                if isinstance(call, Phase) and call.name in halts:
                    yield HostWork(inf)
                if isinstance(call, Phase) and call.name == "forward" and "kernel" in halts:
                    yield Kernel(inf)

    def _step(self, rank: int, step: int, halts: set[str]) -> Iterator[Call]:
        yield Phase("data", step)
        yield HostWork(1e-4)
        compute = {"ddp": self._data_parallel, "fsdp": self._sharded, "pipeline": self._pipeline}[
            self.parallel
        ]
        yield from self._miscount(compute(rank, step), halts)
        yield Phase("optimizer", step)
        yield from self._kernels(self.launches // 8)
        if self.copies == "all" or (self.copies == "first" and rank == 0):
            yield CopyToHost()
        if self.checkpoint_every and step % self.checkpoint_every == 0:
            yield Phase("checkpoint", step)
            yield CopyToHost()
            yield HostWork(0.05)
            yield Collective("world", "barrier")
            yield Join("world")
            yield CopyToHost()
        yield Phase("other", step)

    def _miscount(self, calls: Iterator[Call], halts: set[str]) -> Iterator[Call]:
        """Leaves the first collective out, calls it twice, or calls another in its halt."""
        waiting = halts & {"few", "many", "other_operation"}
        for call in calls:
            if waiting and isinstance(call, Collective):
                wrong = {
                    "few": [],
                    "many": [call, call],
                    "other_operation": [replace(call, operation="all_to_all")],
                }[waiting.pop()]
                waiting = set()
                yield from wrong
            else:
                yield call

    def _kernels(self, number: int) -> Iterator[Call]:
        yield from (Kernel(5e-5) for _ in range(number))

    def _data_parallel(self, _: int, step: int) -> Iterator[Call]:
        yield Phase("forward", step)
        yield from self._kernels(self.launches)
        yield Phase("backward", step)
        for _ in range(4):
            yield from self._kernels(self.launches // 2)
            yield Collective("world", "all_reduce")
        yield Join("world")

    def _sharded(self, _: int, step: int) -> Iterator[Call]:
        for phase in ("forward", "backward"):
            yield Phase(phase, step)
            for _ in range(4):
                yield Collective("world", "all_gather")
                yield Join("world")
                yield from self._kernels(self.launches // 4)
                if phase == "backward":
                    yield Collective("world", "reduce_scatter")
        yield Join("world")

    def _pipeline(self, rank: int, step: int) -> Iterator[Call]:
        replicas = self.ranks // self.stages
        stage = rank // replicas
        for phase in ("forward", "backward"):
            yield Phase(phase, step)
            for _ in range(2 * self.stages):
                arrives, leaves = (
                    (stage > 0, stage < self.stages - 1)
                    if phase == "forward"
                    else (stage < self.stages - 1, stage > 0)
                )
                name = "pp" if phase == "forward" else "back"
                before, after = (
                    (f"{name}{rank - replicas}", f"{name}{rank}")
                    if phase == "forward"
                    else (f"{name}{rank}", f"{name}{rank - replicas}")
                )
                if arrives:
                    yield Collective(before, "send_recv")
                    yield Join(before)
                yield from self._kernels(self.launches // 4)
                if leaves:
                    yield Collective(after, "send_recv")
        yield Phase("sync", step)
        yield Collective(f"dp{stage}", "all_reduce")
        yield Join(f"dp{stage}")
