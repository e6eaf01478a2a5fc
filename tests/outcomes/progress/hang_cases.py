"""Hangs on simulated devices, by what a hang is: who is missing and in what way."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
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


@dataclass(frozen=True)
class Case:
    """`kind`: as that of ``Missing``. `without`: ranks that left no page. `blind`: nobody asked the
    devices, as on older pages. `recorded`: with a Flight Recorder."""

    job: Job
    ranks: tuple[int, ...]
    kind: str
    without: tuple[int, ...] = ()
    blind: bool = False
    recorded: bool = False

    def __str__(self) -> str:
        job, faults = self.job, ",".join(f"{fault.halt}:{fault.rank}" for fault in self.job.faults)
        named = ",".join(map(str, self.ranks)) or "nobody"
        how = f"{job.launches}-{job.copies}{'-blind' * self.blind}"
        return f"{job.ranks}x{job.parallel}-{how}-{faults or job.dead}-{named}"


def stop(ranks: int, rank: int, halt: str, **options: object) -> Case:
    return Case(Job(ranks, (Fault(rank, halt),), **options), (rank,), "host")  # type: ignore[arg-type]  # names of a job's fields


PLACES = ("other", "data", "forward", "backward", "checkpoint")

# A host stops in each halt: few launches a step (the others run many steps ahead), a thousand and
# more (they block within it), a copy of the loss in
# each step on all ranks, on the first only, on none.
STOPS = [
    stop(2, 1, halt, launches=8, checkpoint_every=0 if halt != "checkpoint" else 6)
    for halt in PLACES
]
STOPS += [stop(3, 0, halt, launches=600, steps=14) for halt in PLACES]
STOPS += [stop(8, 7, halt, copies="first") for halt in PLACES]
STOPS += [stop(16, 5, halt, parallel="fsdp", copies="all") for halt in PLACES]
STOPS += [stop(64, 40, halt, launches=8, steps=20) for halt in ("other", "data", "backward")]
STOPS += [
    stop(4, 0, halt, parallel="fsdp", copies="first", checkpoint_every=0)
    for halt in ("other", "forward", "backward")
]

# Two hosts stop together: a node's storage, a data set that ended early on half of the ranks.
BOTH = [
    Case(Job(8, (Fault(2, "data"), Fault(3, "data"))), (2, 3), "host"),
    Case(Job(4, (Fault(0, "data"), Fault(1, "data"), Fault(2, "data"))), (0, 1, 2), "host"),
]

# A stage's rank stops: the ranks of its replica stand in front of the links, those of the other
# replica in front of the reduction.
PIPELINES = [
    Case(
        Job(
            ranks,
            (Fault(rank, halt),),
            parallel="pipeline",
            stages=stages,
            launches=8,
            copies=copies,
            steps=16,
            checkpoint_every=0,
        ),
        (rank,),
        "host",
    )
    for (ranks, stages, rank), (halt, copies) in product(
        ((4, 2, 3), (4, 4, 1), (8, 4, 5), (8, 2, 0), (32, 4, 17)),
        (("forward", "none"), ("backward", "all")),
    )
]

# A collective too few, too many, or another one: of two ranks nobody can tell which of them is
# wrong.
MISCOUNTS = [
    Case(
        Job(ranks, (Fault(ranks - 1, halt),), parallel=parallel, copies=copies),
        tuple(range(ranks)) if ranks == 2 else (ranks - 1,),
        "operations",
        recorded=True,
    )
    for halt in ("few", "many", "other_operation")
    for ranks, parallel, copies in (
        (2, "fsdp", "all"),
        (4, "fsdp", "all"),
        (16, "fsdp", "none"),
        (3, "ddp", "none"),
    )
]

# A dead link, and a kernel that never ends: every host has launched what it had to, wherever it
# stands by then.
LAUNCHED = [
    Case(Job(ranks, dead=("world", 44), copies=copies, launches=launches), (), "launched")
    for ranks, copies, launches in (
        (2, "none", 40),
        (2, "first", 8),
        (8, "all", 40),
        (64, "first", 8),
    )
]
LAUNCHED += [
    Case(
        Job(8, dead=("dp1", 10), parallel="pipeline", stages=2, copies="first", launches=8),
        (),
        "launched",
    )
]
LAUNCHED += [
    Case(Job(4, (Fault(2, "kernel"),), copies=copies), (), "launched") for copies in ("none", "all")
]

# No page of the missing rank, or of another one.
UNSEEN = [
    Case(Job(4, (Fault(3, "data"),), copies="all"), (), "unseen", without=(3,)),
    Case(Job(4, (Fault(3, "data"),), copies="all"), (3,), "host", without=(0,)),
]

# No word of the device: older pages, gloo, a plain recorder.
BLIND = [
    Case(case.job, case.ranks, case.kind, blind=True)
    for case in (*STOPS[:4], *STOPS[5:9], *STOPS[15:19], *PIPELINES[:1])
]

HANGS = [*STOPS, *BOTH, *PIPELINES, *MISCOUNTS, *LAUNCHED, *UNSEEN, *BLIND]

# Healthy: a step, an evaluation or a compilation that lasts on all devices, wherever hosts stand.
LONG_STEPS = [
    Case(
        Job(
            ranks,
            tuple(Fault(rank, "kernel") for rank in range(ranks)),
            parallel=parallel,
            launches=launches,
            copies=copies,
            steps=14,
        ),
        (),
        "launched",
    )
    for ranks, parallel, launches, copies in product(
        (2, 5, 16), ("ddp", "fsdp"), (8, 300), ("none", "first", "all")
    )
    if ranks * launches < 16 * 300
]
