"""Measures this node before a job: ``python -m lockstep.preflight`` prints one JSON object.

Probes: matrix product, copies in memory and from and to the host, all-reduce. They run in a process
of their own, so they may wait for a device.
"""

import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from lockstep_cli.options import DurationRange, option
from lockstep_records.files.node_figure import BYTES, FLOPS, Figure

_MIN_ROUNDS = 5  # two slow ones do not move the median
_LOOPBACK_RANKS = 2
_MEBIBYTE = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeSize:
    """Rows of the matrices, bytes copied at once, and bytes of the all-reduce on each rank."""

    dtype: torch.dtype
    matrix_rows: int
    copy_bytes: int
    reduce_bytes: int


_CPU_PROBE = ProbeSize(
    dtype=torch.float32, matrix_rows=1024, copy_bytes=256 * _MEBIBYTE, reduce_bytes=16 * _MEBIBYTE
)
_GPU_PROBE = ProbeSize(
    dtype=torch.bfloat16,
    matrix_rows=8192,
    copy_bytes=1024 * _MEBIBYTE,
    reduce_bytes=256 * _MEBIBYTE,
)


def measure(
    seconds: float, gpus: Sequence[int] | None = None, load_seconds: float = 0.0
) -> list[Figure]:
    """Figures of each GPU, of some, or of the processor where there is none, and the all-reduce."""
    num_gpus = torch.cuda.device_count()
    indices = range(num_gpus) if gpus is None else gpus
    figures: list[Figure] = []
    for index in indices:
        device = torch.device("cuda", index)
        figures += _measure_device(device, _GPU_PROBE, seconds, load_seconds)
    if num_gpus == 0:
        figures += _measure_device(torch.device("cpu"), _CPU_PROBE, seconds)
    return [*figures, _all_reduce(len(indices), seconds)]


def _measure_device(
    device: torch.device, size: ProbeSize, seconds: float, load_seconds: float = 0.0
) -> Iterator[Figure]:
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else _processor()
    index = device.index if on_gpu else None

    def figure(probe: str, value: float, unit: str = BYTES) -> Figure:
        return Figure(probe=probe, device=name, index=index, value=value, unit=unit)

    left, right = (
        torch.randn(size.matrix_rows, size.matrix_rows, device=device).to(size.dtype) for _ in "ab"
    )
    gemm_seconds = _median_seconds(lambda: left @ right, device, max(seconds, load_seconds))
    yield figure("gemm", 2 * size.matrix_rows**3 / gemm_seconds, FLOPS)
    source = torch.ones(size.copy_bytes // 4, device=device)
    target = torch.empty_like(source)
    copy_seconds = _median_seconds(lambda: target.copy_(source), device, seconds)
    yield figure("memory", 2 * size.copy_bytes / copy_seconds)  # each byte is read and written
    if not on_gpu:
        return
    pinned = torch.empty(size.copy_bytes // 4, pin_memory=True)
    to_device = _median_seconds(lambda: target.copy_(pinned), device, seconds)
    yield figure("host_to_device", size.copy_bytes / to_device)
    to_host = _median_seconds(lambda: pinned.copy_(target), device, seconds)
    yield figure("device_to_host", size.copy_bytes / to_host)


def _median_seconds(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Median duration of one round, seconds; the first round warms up and is left out."""
    durations: list[float] = []
    work()
    deadline = time.perf_counter() + seconds
    while len(durations) < _MIN_ROUNDS or time.perf_counter() < deadline:
        _synchronize(device)
        start = time.perf_counter()
        work()
        _synchronize(device)
        durations.append(time.perf_counter() - start)
    return statistics.median(durations)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _all_reduce(num_gpus: int, seconds: float) -> Figure:
    """Bus bandwidth over the node's GPUs by NCCL, over two ranks of one; by gloo where none is."""
    on_gpus = num_gpus > 0
    world_size = max(num_gpus, _LOOPBACK_RANKS)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "seconds"
        store = f"file://{folder}/store"
        spawn(_reduce, (world_size, on_gpus, seconds, store, result), nprocs=world_size)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        reduce_seconds = float(result.read_text())
    size = (_GPU_PROBE if on_gpus else _CPU_PROBE).reduce_bytes
    # Bus bandwidth as nccl-tests defines it: it does not depend on the number of ranks.
    bus_bytes = 2 * (world_size - 1) / world_size * size
    device = torch.cuda.get_device_name(0) if on_gpus else f"gloo on {_processor()}"
    return Figure(
        probe="all_reduce",
        device=f"{world_size} x {device}",
        index=None,
        value=bus_bytes / reduce_seconds,
        unit=BYTES,
    )


def _reduce(  # noqa: PLR0917  # spawn hands over by position
    rank: int, world_size: int, on_gpus: bool, seconds: float, store: str, result: Path
) -> None:
    backend = "nccl" if on_gpus else "gloo"
    if on_gpus and torch.cuda.device_count() < world_size:
        # NCCL takes two ranks on one GPU where they seem to be on different hosts.
        os.environ |= {"NCCL_HOSTID": f"loopback-{rank}", "NCCL_SOCKET_IFNAME": "lo"}
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=world_size)
    device = (
        torch.device("cuda", rank % torch.cuda.device_count()) if on_gpus else torch.device("cpu")
    )
    size = _GPU_PROBE if on_gpus else _CPU_PROBE
    values = torch.zeros(size.reduce_bytes // 4, device=device)
    durations: list[float] = []
    for _ in range(_num_rounds(values, device, seconds)):
        _synchronize(device)
        start = time.perf_counter()
        dist.all_reduce(values)
        _synchronize(device)
        durations.append(time.perf_counter() - start)
    if rank == 0:
        result.write_text(repr(statistics.median(durations)))
    dist.destroy_process_group()


def _num_rounds(values: torch.Tensor, device: torch.device, seconds: float) -> int:
    """Number of rounds in the time; the same on every rank, or they would hang: the smallest."""
    dist.all_reduce(values)
    _synchronize(device)
    start = time.perf_counter()
    dist.all_reduce(values)
    _synchronize(device)
    num_rounds = torch.tensor(seconds / (time.perf_counter() - start), device=device)
    dist.all_reduce(num_rounds, dist.ReduceOp.MIN)
    return max(int(num_rounds.item()), _MIN_ROUNDS)


def _processor() -> str:
    """Model and number of usable processors; figures of another number cannot be compared."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        cpuinfo = ""
    models = [
        line.partition(":")[2].strip() for line in cpuinfo.splitlines() if "model name" in line
    ]
    model = models[0] if models else platform.machine()
    return f"{torch.get_num_threads()} x {model}"


@click.command()
@option(
    "--duration",
    "seconds",
    type=DurationRange(0.05, 60),
    default="1s",
    help="Running time of each probe, 50ms to 1m.",
)
@click.option("--gpu", "gpus", type=int, multiple=True, help="GPU to measure; all by default.")
@click.option(
    "--load",
    "load_seconds",
    type=DurationRange(0.0, 3600),
    default="0s",
    help="Duration of the matrix product, up to 1h; that of the others by default.",
)
def main(seconds: float, gpus: tuple[int, ...], load_seconds: float) -> None:
    """Measure this node and print the figures as one JSON object."""
    figures = [asdict(figure) for figure in measure(seconds, gpus or None, load_seconds)]
    click.echo(json.dumps({"torch": torch.__version__, "figures": figures}))


if __name__ == "__main__":
    main()
