"""Clean training with load on the machine and restarts of every watcher: nothing may come of it.

Watchers are restarted in the first two fifths of the time; what is measured in the fifth after them
is held against the last fifth.
"""

import functools
import statistics
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from lockstep_cli.gameday.actions import perform
from lockstep_cli.gameday.judge import judge
from lockstep_cli.gameday.rows import Action, Expectation, Job, Row
from lockstep_cli.gameday.scene import Scene
from lockstep_cli.gameday.stage import Stage, empty, end
from lockstep_cli.options import DurationRange, refuse_others

_WATCHERS = ("agent 0", "prometheus", "alertmanager", "pager", "ledger")
_SAMPLES, _EARLY, _LATE = 100, (0.5, 0.7), (0.8, 1.0)
_LOAD = "import time\nwhile True:\n e=time.time()+.5\n while time.time()<e: pass\n time.sleep(.5)"
_OTHERS = ("prometheus", "alertmanager")  # their memory follows the data that they keep
_FREE_RATIO, _FREE_BYTES, _FREE_COUNT = 0.05, 8 << 20, 2
"""Growth within which a measure is steady: allocators and thread pools breathe."""
Measures = Mapping[str, float]


def soak_option(command: Callable[..., int]) -> Callable[..., int]:
    """Adds ``--soak``, which takes the command's place."""

    @functools.wraps(command)
    def run(*, soak_seconds: float | None, **options: Any) -> int:
        if soak_seconds is None:
            return command(**options)
        refuse_others(("soak_seconds", "ranks", "strategy", "keep"), "with --soak")
        return soak(soak_seconds, options["ranks"], options["strategy"], options["keep"])

    return click.option(
        "--soak",
        "soak_seconds",
        type=DurationRange(120, 86_400),
        help="Instead: train cleanly for so long, restart every watcher, and measure what grows.",
    )(run)


def soak(seconds: float, ranks: int, strategy: str, folder: Path) -> int:
    """Soaks, and prints the growth; the exit status is 1 where something was told or grows."""
    empty(folder)
    row = _row(seconds, ranks, strategy)
    samples: list[dict[str, dict[str, float]]] = []
    with Stage(folder.resolve(), [row.row]) as stage:
        scene, over = Scene(stage, row, perform), threading.Event()
        load = subprocess.Popen([sys.executable, "-c", _LOAD], env=stage.environment)
        watch = threading.Thread(target=_watch, args=(scene, seconds, over, samples), daemon=True)
        watch.start()
        try:
            findings = judge(row, scene.play())
        finally:
            over.set()
            watch.join()
            end(load)
    for finding in findings:
        click.echo(f"{'ok' if finding.holds else 'FAIL':<6}{finding.column}: {finding.text}")
    return int(_show(samples) > 0 or not all(finding.holds for finding in findings))


def _row(seconds: float, ranks: int, strategy: str) -> Row:
    restarts = [
        Action(
            name="restart", argument=name, after=f"{0.4 * seconds * number / len(_WATCHERS):.0f}s"
        )
        for number, name in enumerate(_WATCHERS, 1)
    ]
    ends = Action(name="signal", argument={"to": "job", "name": "SIGINT"}, after=f"{seconds:.0f}s")
    return Row(
        row="soak",
        failure="soak",
        says="Clean training with load, and restarts of every watcher.",
        job=Job(ranks=ranks, strategy=strategy, steps=10_000_000, checkpoint_every=200),
        actions=(*restarts, ends, Action(name="file", argument={}, at="step 20")),
        expect=Expectation(watch=f"{seconds:.0f}s"),
        limit=f"{seconds + 300:.0f}s",
    )


def _watch(
    scene: Scene, seconds: float, over: threading.Event, samples: list[dict[str, dict[str, float]]]
) -> None:
    while not over.wait(seconds / _SAMPLES):
        with suppress(OSError, LookupError, ValueError):
            samples.append(_sample(scene))


def _sample(scene: Scene) -> dict[str, dict[str, float]]:
    pids = {name: process.pid for name, process in scene.stage.processes.items()}
    pids |= scene.stage.stack_pids()
    pids |= {f"rank {page.identity['rank']}": page.identity["pid"] for page in scene.pages()}
    found = {}
    for name, pid in pids.items():
        with suppress(OSError):
            found[name] = _measure(Path(f"/proc/{pid}"))
    files = [path.stat() for path in scene.memory.rglob("*") if path.is_file()]
    used = float(sum(512 * each.st_blocks for each in files))
    found["pages and state"] = {"memory": used, "files": float(len(files))}
    store = sum(path.stat().st_size for path in scene.stage.store.parent.iterdir())
    found["ledger's store"] = {"memory": float(store)}
    return found


def _measure(process: Path) -> dict[str, float]:
    lines = (process / "status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    return {
        "memory": 1024 * float(status["VmRSS"].split()[0]),
        "threads": float(status["Threads"]),
        "descriptors": float(sum(1 for _ in (process / "fd").iterdir())),
    }


def _show(samples: list[dict[str, dict[str, float]]]) -> int:
    """Prints the table; how many measures of ours grow."""
    early, late = _part(samples, _EARLY), _part(samples, _LATE)
    table, num_growing = Table("what", "measure", "middle", "end", "grows by", ""), 0
    for key in sorted(early.keys() & late.keys()):
        (name, measure), grown = key, late[key] - early[key]
        free = _FREE_RATIO * early[key] + _FREE_BYTES if measure == "memory" else _FREE_COUNT
        grows = grown > free and name not in _OTHERS
        num_growing += grows
        texts = (_text(measure, value) for value in (early[key], late[key], grown))
        table.add_row(name, measure, *texts, "GROWS" if grows else "")
    Console(width=110).print(table)
    return num_growing


def _part(
    samples: list[dict[str, dict[str, float]]], bounds: tuple[float, float]
) -> dict[tuple[str, str], float]:
    """Median of each measure between two shares of the samples."""
    begin, until = (round(bound * len(samples)) for bound in bounds)
    values = defaultdict[tuple[str, str], list[float]](list)
    for sample in samples[begin:until]:
        for name, measures in sample.items():
            for measure, value in measures.items():
                values[name, measure].append(value)
    return {key: statistics.median(each) for key, each in values.items()}


def _text(measure: str, value: float) -> str:
    return f"{value / (1 << 20):.1f} MiB" if measure == "memory" else f"{value:g}"
