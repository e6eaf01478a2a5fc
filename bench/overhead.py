"""Microseconds that the monitor adds to a step: ``python bench/overhead.py [--json FILE]``.

One process runs the same loop in turns, bare and monitored, and compares pair by pair, for the
machine's speed drifts. Three loops: an empty step with every mark made by hand; a step of real
torch operations, so that caches are cold when the monitor is called; and real backward passes of a
small model, whose hooks carry the autograd engine's callback.
"""

import json
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import torch

import lockstep

_MARKS = ("data", "forward", "backward", "sync", "optimizer", "other")
_ROOT = Path("/dev/shm/lockstep-bench")  # noqa: S108  # a page must lie on a tmpfs


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One line of the table; microseconds a step, medians over the pairs."""

    loop: str
    bare_us: float
    monitored_us: float
    added_us: float
    spread_us: float


def _timed(step: Callable[[lockstep.Disabled], None], monitor: lockstep.Disabled, n: int) -> float:
    begin = time.perf_counter_ns()
    for _ in range(n):
        step(monitor)
    return (time.perf_counter_ns() - begin) / n / 1e3


def _empty(monitor: lockstep.Disabled) -> None:
    for name in _MARKS:
        monitor.mark(name)
    monitor.step(loss=1.5, tokens=1024, samples=8, gradient_norm=0.7, learning_rate=1e-3)


def _torch_operations() -> Callable[[lockstep.Disabled], None]:
    left, right = torch.randn(256, 256), torch.randn(256, 256)

    def step(monitor: lockstep.Disabled) -> None:
        for name in _MARKS:
            monitor.mark(name)
            torch.mm(left, right)
        monitor.step(loss=1.5, tokens=1024, samples=8, gradient_norm=0.7, learning_rate=1e-3)

    return step


def _backward(hooked: bool) -> Callable[[lockstep.Disabled], None]:
    """A whole small training step; with hooks the monitor finds the boundaries itself."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if hooked:
        _kept.append(_monitor("hooked", model, optimizer))
    batch = torch.randn(8, 64)

    def step(_monitor: lockstep.Disabled) -> None:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        if hooked:
            _kept[-1].step(loss=1.5, tokens=1024, samples=8)

    return step


_kept: list[lockstep.Disabled] = []


def _monitor(
    name: str,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> lockstep.Disabled:
    monitor = lockstep.attach(
        model, optimizer, root=_ROOT, environment={"LOCKSTEP_JOB_ID": f"bench-{name}"}
    )
    assert monitor.enabled, "the bench needs a tmpfs at /dev/shm"
    return monitor


def _compare(
    loop: str,
    bare: Callable[[lockstep.Disabled], None],
    monitored: Callable[[lockstep.Disabled], None],
    pairs: int,
    num_steps: int,
) -> Figure:
    off, on = lockstep.disabled(), _monitor(loop.replace(" ", "-"))
    _timed(bare, off, num_steps)
    _timed(monitored, on, num_steps)
    rows = [(_timed(bare, off, num_steps), _timed(monitored, on, num_steps)) for _ in range(pairs)]
    added = sorted(b - a for a, b in rows)
    return Figure(
        loop=loop,
        bare_us=statistics.median(a for a, _ in rows),
        monitored_us=statistics.median(b for _, b in rows),
        added_us=statistics.median(added),
        spread_us=added[3 * len(added) // 4] - added[len(added) // 4],
    )


@click.command()
@click.option("--pairs", default=40, show_default=True, help="Bare and monitored runs, in turn.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Also write figures here."
)
def main(pairs: int, json_file: Path | None) -> None:
    """Print what the monitor adds to a step."""
    torch.set_num_threads(1)
    shutil.rmtree(_ROOT, ignore_errors=True)
    try:
        operations = _torch_operations()
        figures = [
            _compare("empty step", _empty, _empty, pairs, 2000),
            _compare("torch operations", operations, operations, pairs, 100),
            _compare("real backward", _backward(False), _backward(True), pairs, 200),
        ]
    finally:
        shutil.rmtree(_ROOT, ignore_errors=True)
    print(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}")
    print(f"{'loop':<20}{'bare us':>10}{'monitored us':>14}{'added us':>10}{'quartiles us':>14}")
    for f in figures:
        print(
            f"{f.loop:<20}{f.bare_us:>10.2f}{f.monitored_us:>14.2f}{f.added_us:>10.2f}{f.spread_us:>14.2f}"
        )
    if json_file:
        told = [{name: getattr(f, name) for name in Figure.__slots__} for f in figures]
        json_file.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    sys.exit(0)


if __name__ == "__main__":
    main()
