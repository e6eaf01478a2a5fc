"""The cost of watching a step, compared with other tools, in one run: ``make bench-overhead``.

Each competitor runs the same loop in a process of its own, bare and watched in turn; competitors
take turns too, round after round, and their pairs are pooled.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import click
from pairs import Median, Pair, median_of
from rich.console import Console
from rich.table import Table

Pooled: TypeAlias = dict[tuple[str, str], list[Pair]]  # by competitor and loop
_HERE = Path(__file__).parent
_TRACEML = ("-m", "traceml_ai.launcher.cli", "run")
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@dataclass(frozen=True, slots=True)
class Competitor:
    """One competitor: how its script is started, and how many pairs it runs in a round."""

    name: str
    launcher: tuple[str, ...]
    pairs: int
    peer: str = ""

    def run(self, peers: Path) -> dict[str, list[Pair]]:
        """The pairs of one round, by loop."""
        # A folder of its own on a tmpfs, so that an interrupted run is not in the way of the next.
        with tempfile.TemporaryDirectory(
            prefix="lockstep-bench-", dir="/dev/shm"
        ) as folder:  # a page must be on a tmpfs
            result = Path(folder) / "pairs.json"
            completed = subprocess.run(
                [sys.executable, *self.launcher, str(_HERE / f"competitor_{self.name}.py")],
                env={
                    **os.environ,
                    "PYTHONPATH": f"{_HERE}:{_HERE.parent}:{peers}" if self.peer else str(_HERE),
                    "BENCH_PAIRS": str(result),
                    "BENCH_ROOT": folder,
                    "BENCH_ROUND_PAIRS": str(self.pairs),
                    "OMP_NUM_THREADS": "1",
                },
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            if completed.returncode != 0 or not result.exists():
                raise click.ClickException(f"{self.name} failed:\n{completed.stderr[-2000:]}")
            pairs: dict[str, list[Pair]] = json.loads(result.read_text(encoding="utf-8"))
            return pairs


_COMPETITORS = (
    Competitor("lockstep", (), pairs=20),
    Competitor("traceml", _TRACEML, pairs=5, peer="traceml_ai"),
    Competitor("ddp", _TORCHRUN, pairs=2000),
)


def _added(rows: list[Pair]) -> Median:
    return median_of([watched - bare for bare, watched in rows])


def _format_added(added: Median) -> str:
    return f"{added.value:.1f} ({added.low:.1f} to {added.high:.1f})"


def _table(pooled: Pooled) -> Table:
    table = Table("competitor", "loop", "bare us", "added us (95 %)", "target")
    _add_small_loops(table, pooled)
    _add_ddp(table, pooled)
    return table


def _add_small_loops(table: Table, pooled: Pooled) -> None:
    for competitor, loop, name, title, target in (
        ("lockstep", "ten phases", "Lockstep", "ten phases and the page, nothing else", "<= 6"),
        ("lockstep", "backward", "Lockstep", "backward, an empty forward hook left out", "<= 8"),
        ("lockstep", "step", "Lockstep", "a whole step, every hook", ""),
        ("traceml", "step", "TraceML 0.5.0", "a whole step in trace_step", ""),
    ):
        if rows := pooled.get((competitor, loop)):
            bare = median_of([bare for bare, _ in rows]).value
            table.add_row(name, title, f"{bare:.1f}", _format_added(_added(rows)), target)
    if {"lockstep", "traceml"} <= {competitor for competitor, _ in pooled}:
        ours = sum(_added(pooled["lockstep", loop]).value for loop in ("ten phases", "backward"))
        ratio = ours / _added(pooled["traceml", "step"]).value
        table.add_row("", "(phases + backward) / TraceML", "", f"{ratio:.2f}", "<= 0.20")


def _add_ddp(table: Table, pooled: Pooled) -> None:
    for loop, title, target in (
        ("twin wall", "DDP, 2 gloo ranks, bare both times: noise", ""),
        ("wall", "DDP, 2 gloo ranks, every hook", "<= 30 us"),
        ("twin busy", "bare both times, processor time of the loop", ""),
        ("busy", "the same DDP, processor time of the loop", ""),
    ):
        if not (rows := pooled.get(("ddp", loop))):
            continue
        bare, added = median_of([bare for bare, _ in rows]).value, _added(rows)
        low, median, high = (100 * each / bare for each in (added.low, added.value, added.high))
        figures = f"{_format_added(added)}, {median:+.2f} % ({low:+.2f} to {high:+.2f})"
        table.add_row("Lockstep", title, f"{bare:.0f}", figures, target)


@click.command()
@click.option("--rounds", default=3, show_default=True, help="Number of turns of each competitor.")
@click.option(
    "--only",
    "names",
    type=click.Choice([competitor.name for competitor in _COMPETITORS]),
    multiple=True,
    help="Competitor to run; may be repeated. All by default.",
)
@click.option(
    "--peers",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".venv/peers"),
    show_default=True,
    help="Folder of the other tools; `make bench-overhead` fills it.",
)
def main(rounds: int, names: tuple[str, ...], peers: Path) -> None:
    """Print what watching adds to a step, ours and others'."""
    competitors = [each for each in _COMPETITORS if not names or each.name in names]
    if any(each.peer for each in competitors) and not peers.is_dir():
        raise click.BadParameter(f"{peers} is not a folder", param_hint="--peers")
    pooled: Pooled = defaultdict(list)
    for number in range(rounds):
        for competitor in competitors:
            began = time.monotonic()
            for loop, rows in competitor.run(peers.absolute()).items():
                pooled[competitor.name, loop] += [(bare, watched) for bare, watched in rows]
            seconds = time.monotonic() - began
            click.echo(f"round {number + 1}/{rounds}: {competitor.name}, {seconds:.0f} s", err=True)
    out = Console(width=130)
    out.print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    out.print(_table(pooled))


if __name__ == "__main__":
    main()
