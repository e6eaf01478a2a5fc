"""Measures this node before a job: matrix product, memory, all-reduce; ``-m lockstep.preflight``.

Prints one JSON object on stdout. It runs in a process of its own, so it may wait for a device.
"""

import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from lockstep_records.options import DurationRange

_ROUNDS_AT_LEAST = 5
_CPU_RANKS = 2
_MEGA = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """How large each probe is.

    Attributes:
        side: rows and columns of the square matrices.
        copied: bytes copied in memory at once.
        reduced: bytes of the all-reduce on each rank.
    """

    dtype: torch.dtype
    side: int
    copied: int
    reduced: int


_ON_CPU = Size(dtype=torch.float32, side=1024, copied=256 * _MEGA, reduced=16 * _MEGA)
_ON_GPU = Size(dtype=torch.bfloat16, side=8192, copied=1024 * _MEGA, reduced=256 * _MEGA)


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One measured figure.

    Attributes:
        device: product name of the device, the same on every node of a kind.
        index: which one on this node; None for all together.
        value: more is faster.
    """

    probe: str
    device: str
    index: int | None
    value: float
    unit: str


def measure(seconds: float) -> list[Figure]:
    """The figures of every GPU, of the processor where there is none, and of all together.

    Args:
        seconds: how long each probe runs.
    """
    num_gpus = torch.cuda.device_count()
    figures: list[Figure] = []
    for index in range(num_gpus):
        device = torch.device("cuda", index)
        figures += _of_device(device, torch.cuda.get_device_name(device), index, _ON_GPU, seconds)
    if num_gpus == 0:
        figures += _of_device(torch.device("cpu"), _processor(), None, _ON_CPU, seconds)
    return [*figures, _all_reduce(num_gpus, seconds)]


def _of_device(
    device: torch.device, name: str, index: int | None, size: Size, seconds: float
) -> Iterator[Figure]:
    left, right = (torch.randn(size.side, size.side, device=device).to(size.dtype) for _ in "ab")
    took = _median_seconds(lambda: left @ right, device, seconds)
    flops = 2 * size.side**3
    yield Figure(
        probe="gemm", device=name, index=index, value=flops / took, unit="flops_per_second"
    )
    source = torch.ones(size.copied // 4, device=device)
    target = torch.empty_like(source)
    took = _median_seconds(lambda: target.copy_(source), device, seconds)
    yield Figure(
        probe="memory",
        device=name,
        index=index,
        value=2 * size.copied / took,
        unit="bytes_per_second",
    )


def _median_seconds(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Seconds of one round, the median of as many as fit; the first warms up and is left out."""
    took: list[float] = []
    work()
    ends = time.perf_counter() + seconds
    while len(took) < _ROUNDS_AT_LEAST or time.perf_counter() < ends:
        _settle(device)
        began = time.perf_counter()
        work()
        _settle(device)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _all_reduce(num_gpus: int, seconds: float) -> Figure:
    """Over the GPUs of the node by NCCL; over the loopback by gloo where there are not two."""
    on_gpus = num_gpus >= _CPU_RANKS
    world_size = num_gpus if on_gpus else _CPU_RANKS
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "seconds"
        store = f"file://{folder}/store"
        spawn(_reduce, (world_size, on_gpus, seconds, store, answer), nprocs=world_size)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        took = float(answer.read_text())
    size = (_ON_GPU if on_gpus else _ON_CPU).reduced
    moved = 2 * (world_size - 1) / world_size * size
    on = torch.cuda.get_device_name(0) if on_gpus else f"gloo on {_processor()}"
    return Figure(
        probe="all_reduce",
        device=f"{world_size} x {on}",
        index=None,
        value=moved / took,
        unit="bytes_per_second",
    )


def _reduce(  # noqa: PLR0917  # spawn hands over by position
    rank: int, world_size: int, on_gpus: bool, seconds: float, store: str, answer: Path
) -> None:
    backend = "nccl" if on_gpus else "gloo"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=world_size)
    device = torch.device("cuda", rank) if on_gpus else torch.device("cpu")
    size = _ON_GPU if on_gpus else _ON_CPU
    values = torch.zeros(size.reduced // 4, device=device)
    took: list[float] = []
    for _ in range(_rounds(values, device, seconds)):
        _settle(device)
        began = time.perf_counter()
        dist.all_reduce(values)
        _settle(device)
        took.append(time.perf_counter() - began)
    if rank == 0:
        answer.write_text(repr(statistics.median(took)))
    dist.destroy_process_group()


def _rounds(values: torch.Tensor, device: torch.device, seconds: float) -> int:
    """How many rounds fit, the same on every rank: the slowest rank's count."""
    dist.all_reduce(values)
    _settle(device)
    began = time.perf_counter()
    dist.all_reduce(values)
    _settle(device)
    fits = torch.tensor(seconds / (time.perf_counter() - began), device=device)
    dist.all_reduce(fits, dist.ReduceOp.MIN)
    return max(int(fits.item()), _ROUNDS_AT_LEAST)


def _processor() -> str:
    """Model and number of usable processors; figures of other numbers cannot be compared."""
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        told = ""
    models = [line.partition(":")[2].strip() for line in told.splitlines() if "model name" in line]
    model = models[0] if models else platform.machine()
    return f"{torch.get_num_threads()} x {model}"


@click.command()
@click.option(
    "--duration",
    "seconds",
    type=DurationRange(0.05, 60),
    default="1s",
    show_default=True,
    help="Running time of each probe, 50ms to 1m.",
)
def main(seconds: float) -> None:
    """Measure this node and print the figures as JSON."""
    figures = [asdict(figure) for figure in measure(seconds)]
    click.echo(json.dumps({"torch": torch.__version__, "figures": figures}))


if __name__ == "__main__":
    main()
