"""Programs by the collectives of their steps, by which steps are found."""

import random
from collections.abc import Callable

from lockstep_records.nccl.periods import Collective

MIB = 1 << 20
NORM = Collective("world", "AllReduce", 4)
EVALUATION = [Collective("dp", "Broadcast", 512)] * 30 + [Collective("dp", "AllReduce", 8)]
Step = list[Collective]


def ddp(buckets: int = 25, communicator: str = "dp") -> Step:
    return [
        Collective(communicator, "AllReduce", 25 * MIB + bucket * 4096) for bucket in range(buckets)
    ]


def fsdp(layers: int = 24) -> Step:
    gather, scatter = (Collective("dp", name, 4 * MIB) for name in ("AllGather", "ReduceScatter"))
    return [gather] * (layers + 1) + ([scatter, gather] * layers)[:-1]


def tensor_parallel(layers: int = 24, size: int = 64 * MIB) -> Step:
    return [Collective("tp", "AllReduce", size)] * (4 * layers)


def pipeline(micro_batches: int = 12) -> Step:
    send, receive = (Collective("pp", name, MIB) for name in ("Send", "Recv"))
    return [send] * 4 + [receive, send] * micro_batches + [receive] * 4 + ddp(3)


def varying_micro_batches(rng: random.Random) -> Step:
    return tensor_parallel() * rng.randint(3, 9) + ddp(8)


def varying_sizes(rng: random.Random) -> Step:
    return tensor_parallel(size=4096 * rng.randint(100, 4000)) + ddp(8)


def experts(rng: random.Random) -> Step:
    exchanges = (Collective("ep", "AllToAll", 4096 * rng.randint(1, 8)) for _ in range(24))
    return [each for exchange in exchanges for each in (exchange, ddp(1)[0])] + ddp(3, "edp")


def interleaved(rng: random.Random) -> Step:
    step, parts = [], [ddp(10), fsdp(8), tensor_parallel(2)]
    while parts := [part for part in parts if part]:
        step.append(rng.choice(parts).pop(0))
    return step


PROGRAMS: dict[str, Callable[[random.Random], Step]] = {
    "one all-reduce": lambda _: ddp(1),
    "buckets": lambda _: ddp(),
    "buckets of one size": lambda _: [ddp(1)[0]] * 40 + [Collective("dp", "AllReduce", MIB)],
    "sharded": lambda _: fsdp(),
    "sharded, 80 layers": lambda _: fsdp(80),
    "sharded, with a norm": lambda _: [*fsdp(), NORM],
    "sharded, 4 micro-batches": lambda _: [*(fsdp() * 4), NORM],
    "sharded, 16 micro-batches": lambda _: [*(fsdp(8) * 16), NORM],
    "tensor and data": lambda _: tensor_parallel() * 8 + ddp(8),
    "pipeline": lambda _: pipeline(),
    "varying micro-batches": varying_micro_batches,
    "varying sizes": varying_sizes,
    "experts": experts,
    "interleaved": interleaved,
}
