"""Makes every failure for real on this machine, and judges what people are told of it."""

import queue
import random
import shutil
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from subprocess import SubprocessError

import click
from rich.console import Console

from lockstep_cli.gameday import cluster_actions, monitoring_actions, results  # noqa: F401  # register actions
from lockstep_cli.gameday.actions import missing, perform
from lockstep_cli.gameday.against import against_options
from lockstep_cli.gameday.judge import judge
from lockstep_cli.gameday.pairs import draw_pairs
from lockstep_cli.gameday.results import Result
from lockstep_cli.gameday.rows import Row, RowError, read_rows
from lockstep_cli.gameday.scene import Observed, Scene
from lockstep_cli.gameday.soak import soak_option
from lockstep_cli.gameday.stage import Stage, StoppedError, empty
from lockstep_cli.options import bad_input

_PROGRAMS = (("prometheus",), ("alertmanager", "prometheus-alertmanager"))
_FILE = click.Path(dir_okay=False, path_type=Path)
_BROKEN = (OSError, ValueError, TypeError, LookupError, AttributeError)
Group = tuple[Row, ...]
"""Rows that are played at once."""


@click.command()
@click.option("--only", default="", help="Rows or failures, by commas, such as F3,f6-memory.")
@click.option("--quick", is_flag=True, help="Only the shortest useful rows.")
@click.option(
    "--pairs",
    type=click.IntRange(0, 100),
    default=0,
    help="Make so many pairs of the rows, drawn by chance, two jobs of one cluster at a time.",
)
@click.option("--list", "is_list", is_flag=True, help="List the rows and make none.")
@click.option(
    "--ranks", type=click.IntRange(2, 16), default=4, show_default=True, help="Ranks of a job."
)
@click.option(
    "--strategy", default="ddp", show_default=True, help="Of the jobs, see lockstep train."
)
@click.option("--seed", type=int, help="Seed that draws ranks and steps; random when left out.")
@click.option(
    "--parallel",
    type=click.IntRange(1, 32),
    default=4,
    show_default=True,
    help="Rows that are played at a time.",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("gameday-out"),
    show_default=True,
    help="Folder of evidence; emptied first.",
)
@click.option("--html", type=_FILE, help="File for the results as a page.")
@click.option("--junit", type=_FILE, help="File for the results as JUnit XML.")
@click.option("--markdown", type=_FILE, help="File for the results as Markdown.")
@against_options
@soak_option
def gameday(
    *,
    only: str,
    quick: bool,
    pairs: int,
    is_list: bool,
    ranks: int,
    strategy: str,
    seed: int | None,
    parallel: int,
    keep: Path,
    html: Path | None,
    junit: Path | None,
    markdown: Path | None,
) -> int:
    """Make every failure of the table, and judge alerts, notifications, ledger and report.

    Exit status 0 if every row that this machine can make came out as it is expected.
    """
    seed = random.SystemRandom().randrange(10_000) if seed is None else seed
    with bad_input(RowError):
        rows = _select(read_rows(seed, ranks, strategy), only, is_quick=quick)
        reasons = {row.row: missing(row) for row in rows}
    groups = _group([row for row in rows if not reasons[row.row]], pairs, seed)
    if is_list:
        return _list(rows)
    _refuse_what_is_missing()
    empty(keep)
    began = time.monotonic()
    left_out = [Result.not_run(row, reasons[row.row]) for row in rows if reasons[row.row]]
    played = left_out * (not pairs) + play_all(groups, keep.resolve(), parallel)
    document = results.Document(
        seed=seed,
        ranks=ranks,
        strategy=strategy,
        seconds=time.monotonic() - began,
        results=tuple(sorted(played, key=lambda result: (len(result.failure), result.failure))),
    )
    results.write(document, {".html": html, ".xml": junit, ".md": markdown})
    return 0 if all(result.holds or result.missing for result in document.results) else 1


def _group(rows: list[Row], pairs: int, seed: int) -> Sequence[Group]:
    return draw_pairs(rows, pairs, seed) if pairs else [(row,) for row in rows]


def _list(rows: list[Row]) -> int:
    for row in rows:
        click.echo(f"{row.failure:<12} {row.row:<28} {row.says}")
    return 0


def _select(rows: list[Row], only: str, *, is_quick: bool) -> list[Row]:
    names = {name.strip().lower() for name in only.split(",") if name.strip()}
    unknown = names - {row.row for row in rows} - {row.failure.lower() for row in rows}
    if unknown:
        raise RowError(
            f"--only {', '.join(sorted(unknown))}: lockstep gameday --list shows the rows"
        )
    return [
        row
        for row in rows
        if (not names or {row.row, row.failure.lower()} & names) and (row.quick or not is_quick)
    ]


def _refuse_what_is_missing() -> None:
    for names in _PROGRAMS:
        if not any(shutil.which(name) for name in names):
            raise click.UsageError(f"{names[-1]} is not on PATH; install it")


def play_all(groups: Sequence[Group], folder: Path, parallel: int) -> list[Result]:
    """Plays several groups of rows at a time, those of a group at once."""
    played = list[Result]()
    if not groups:
        return played
    console = Console(stderr=True, highlight=False)
    console.print(f"starts the stack; evidence: {folder}", markup=False)
    with Stage(folder, {row.cluster for group in groups for row in group}) as stage:
        _play_in_lanes(stage, groups, parallel, played, console)
    return played


def _play_in_lanes(
    stage: Stage, groups: Sequence[Group], lanes: int, played: list[Result], console: Console
) -> None:
    waiting = queue.SimpleQueue[Group]()
    # The longest first: the last to end decides when the game day is over.
    for group in sorted(groups, key=lambda group: -max(row.expected_seconds for row in group)):
        waiting.put(group)
    lane = partial(_play_lane, stage, waiting, played, console)
    num_lanes = max(1, min(lanes // len(groups[0]), len(groups)))
    threads = [threading.Thread(target=lane, daemon=True) for _ in range(num_lanes)]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.2)
    finally:
        if any(thread.is_alive() for thread in threads):
            stage.stopped.set()
        for thread in threads:
            thread.join()


def _play(stage: Stage, row: Row) -> Observed:
    if not row.exclusive:
        return Scene(stage, row, perform).play()
    with Stage(stage.folder / "own" / row.row, [row.row], stage.stopped) as own:
        return Scene(own, row, perform).play()


def _play_lane(
    stage: Stage, waiting: queue.SimpleQueue[Group], played: list[Result], console: Console
) -> None:
    while not waiting.empty() and not stage.stopped.is_set():
        play = partial(_play_row, stage, played, console)
        threads = [threading.Thread(target=play, args=(row,)) for row in waiting.get()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _play_row(stage: Stage, played: list[Result], console: Console, row: Row) -> None:
    began = time.monotonic()
    console.print(f"{row.row}: {row.says}", markup=False)
    try:
        observed = _play(stage, row)
        result = Result.of(row, judge(row, observed), time.monotonic() - began)
    except StoppedError:
        return
    except (*_BROKEN, click.ClickException, SubprocessError) as error:
        result = Result.broken(row, f"{type(error).__name__}: {error}")
    played.append(result)
    word = "ok" if result.holds else "FAIL"
    console.print(f"{row.row}: {word} after {result.seconds:.0f} s", markup=False)
    for finding in result.findings:
        if not finding.holds:
            console.print(f"    {finding.column}: {finding.text}", markup=False)
