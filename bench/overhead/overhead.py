"""What watching costs a step, beside other tools, in one run: ``make bench-overhead``.

Each contestant runs the same loop in a process of its own, bare and watched in turn; the
contestants take turns too, round after round, and their pairs are pooled.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import click
from pairs import Median, Pair, median_of
from rich.console import Console
from rich.progress import track
from rich.table import Table

_HERE = Path(__file__).parent
_TRACEML = ("-m", "traceml_ai.launcher.cli", "run")
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@dataclass(frozen=True, slots=True)
class Side:
    """One contestant: how its script is started, and how many pairs it runs in a round."""

    name: str
    launcher: tuple[str, ...]
    pairs: int
    peer: str = ""

    def run(self, peers: Path) -> dict[str, list[Pair]]:
        """The pairs of one round, by loop."""
        with tempfile.TemporaryDirectory() as folder:
            told = Path(folder) / "pairs.json"
            ended = subprocess.run(
                [sys.executable, *self.launcher, str(_HERE / f"side_{self.name}.py")],
                env={
                    **os.environ,
                    "PYTHONPATH": f"{_HERE}:{_HERE.parent}:{peers}" if self.peer else str(_HERE),
                    "BENCH_PAIRS": str(told),
                    "BENCH_ROUND_PAIRS": str(self.pairs),
                    "OMP_NUM_THREADS": "1",
                },
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            if ended.returncode != 0 or not told.exists():
                raise click.ClickException(f"{self.name} did not run:\n{ended.stderr[-2000:]}")
            figures: dict[str, list[Pair]] = json.loads(told.read_text(encoding="utf-8"))
            return figures


_SIDES = (
    Side("lockstep", (), pairs=20),
    Side("traceml", _TRACEML, pairs=5, peer="traceml_ai"),
    Side("nvrx", (), pairs=20, peer="nvidia_resiliency_ext"),
    Side("ddp", _TORCHRUN, pairs=2000),
    Side("cuda", (), pairs=2000),
)


def _added(rows: list[Pair]) -> Median:
    return median_of([watched - bare for bare, watched in rows])


def _micro(added: Median) -> str:
    return f"{added.value:.1f} ({added.low:.1f} to {added.high:.1f})"


def _table(pooled: dict[tuple[str, str], list[Pair]]) -> Table:
    table = Table("contestant", "loop", "bare us", "added us (95 %)", "wanted")
    told = (
        ("lockstep", "ten phases", "Lockstep", "ten phases and the page, nothing else", "<= 6"),
        ("lockstep", "backward", "Lockstep", "backward mark beside an empty forward hook", "<= 8"),
        ("lockstep", "step", "Lockstep", "a whole step, every hook", ""),
        ("traceml", "step", "TraceML 0.5.0", "a whole step in trace_step", ""),
        ("nvrx", "step", "NVRx 0.4.1", "a whole step in three sections", ""),
    )
    for side, loop, name, what, wanted in told:
        if rows := pooled.get((side, loop)):
            bare = median_of([bare for bare, _ in rows]).value
            table.add_row(name, what, f"{bare:.1f}", _micro(_added(rows)), wanted)
    if "traceml" in {side for side, _ in pooled}:
        ours = sum(_added(pooled["lockstep", loop]).value for loop in ("ten phases", "backward"))
        ratio = ours / _added(pooled["traceml", "step"]).value
        table.add_row("", "(phases + backward mark) / TraceML", "", f"{ratio:.2f}", "<= 0.20")
    for loop, what, wanted in (
        ("twin wall", "DDP, 2 gloo ranks, bare both times: noise", ""),
        ("wall", "DDP, 2 gloo ranks, every hook", "<= 0.5 %"),
        ("twin busy", "bare both times, processor time of the loop", ""),
        ("busy", "the same DDP, processor time of the loop", ""),
    ):
        rows = pooled["ddp", loop]
        bare, added = median_of([bare for bare, _ in rows]).value, _added(rows)
        low, middle, high = (100 * one / bare for one in (added.low, added.value, added.high))
        figures = f"{_micro(added)}, {middle:+.2f} % ({low:+.2f} to {high:+.2f})"
        table.add_row("Lockstep", what, f"{bare:.0f}", figures, wanted)
    if rows := pooled.get(("cuda", "cuda")):
        bare = median_of([bare for bare, _ in rows]).value
        table.add_row(
            "Lockstep", "CUDA events, every step", f"{bare:.1f}", _micro(_added(rows)), ""
        )
    else:
        table.add_row("Lockstep", "CUDA events, every step", "", "no GPU here", "")
    return table


@click.command()
@click.option("--rounds", default=3, show_default=True, help="Turns of every contestant.")
@click.option(
    "--peers",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path(".venv/peers"),
    show_default=True,
    help="Folder that holds the other tools; `make bench-overhead` fills it.",
)
def main(rounds: int, peers: Path) -> None:
    """Print what watching adds to a step, ours and others'."""
    pooled: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    turns = [side for _ in range(rounds) for side in _SIDES]
    console = Console(stderr=True)
    for side in track(turns, "contestants take turns", console=console, transient=True):
        for loop, rows in side.run(peers.absolute()).items():
            pooled[side.name, loop] += [(bare, watched) for bare, watched in rows]
    out = Console(width=130)
    out.print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    out.print(_table(pooled))


if __name__ == "__main__":
    main()
