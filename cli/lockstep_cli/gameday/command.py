"""Makes every failure for real on this machine, and judges what people are told of it."""

import math
import os
import queue
import random
import re
import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from lockstep_cli.gameday import results
from lockstep_cli.gameday.actions import missing, perform
from lockstep_cli.gameday.against import against_options
from lockstep_cli.gameday.judge import judge
from lockstep_cli.gameday.results import Result
from lockstep_cli.gameday.rows import SERVERS_GIGABYTES, Row, RowError, draw_pairs, read_rows
from lockstep_cli.gameday.scene import Observed, Scene
from lockstep_cli.gameday.soak import soak_option
from lockstep_cli.gameday.stage import Stage, StoppedError, empty, read_notifications
from lockstep_cli.options import bad_input, option
from lockstep_cli.signals import until_signal

_PROGRAMS = (("prometheus",), ("alertmanager", "prometheus-alertmanager"))
_FILE = click.Path(dir_okay=False, path_type=Path)
_ENDED = "the game day was ended before"
_INTERRUPTED = 130  # as a shell has it
Group = tuple[Row, ...]
"""Rows that are played at once."""


@click.command()
@click.option("--only", help="Rows or failures, by commas, such as F3,f6-allocation.")
@click.option("--quick", is_flag=True, help="Only the shortest useful rows.")
@click.option(
    "--pairs",
    type=click.IntRange(0, 100),
    default=0,
    help="Make so many pairs of the rows, drawn by chance, two jobs of one cluster at a time.",
)
@click.option("--list", "is_list", is_flag=True, help="List the rows and make none.")
@option("--ranks", type=click.IntRange(2, 16), default=4, help="Ranks of a job.")
@option("--strategy", default="ddp", help="Of the jobs, see lockstep train.")
@click.option(
    "--seed",
    type=int,
    default=partial(random.SystemRandom().randrange, 10_000),
    help="Seed that draws ranks and steps; random when left out.",
)
@option(
    "--parallel",
    type=click.IntRange(1, 32),
    default=4,
    help="Rows that are played at a time, where the memory is enough.",
)
@option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("gameday-out"),
    help="Folder of evidence; emptied first.",
)
@click.option("--html", type=_FILE, help="File for the results as a page.")
@click.option("--junit", type=_FILE, help="File for the results as JUnit XML.")
@click.option("--markdown", type=_FILE, help="File for the results as Markdown.")
@against_options
@soak_option
def gameday(
    *,
    only: str | None,
    quick: bool,
    pairs: int,
    is_list: bool,
    ranks: int,
    strategy: str,
    seed: int,
    parallel: int,
    keep: Path,
    html: Path | None,
    junit: Path | None,
    markdown: Path | None,
) -> int:
    """Make every failure of the table, and judge alerts, notifications, ledger and report.

    Exit status 0 if every row that this machine can make came out as it is expected.
    """
    with bad_input(RowError):
        rows = _select(read_rows(seed, ranks, strategy), only, is_quick=quick)
        lacking = {row.row: Result.not_run(row, why) for row in rows if (why := missing(row))}
    groups = _group([row for row in rows if row.row not in lacking], pairs, seed)
    if is_list:
        return _list(rows)
    _refuse_what_is_missing(keep, html, junit, markdown)
    lanes = _lanes(groups, parallel)
    empty(keep)
    began, played = time.monotonic(), list(lacking.values()) * (not pairs)
    play_all(groups, keep.resolve(), lanes, played)
    document = results.Document(
        seed=seed,
        ranks=ranks,
        strategy=strategy,
        seconds=time.monotonic() - began,
        results=_add_left(played, groups),
        strangers=_strangers(keep, groups),
    )
    results.write(document, {".html": html, ".xml": junit, ".md": markdown})
    return _status(document, is_named=bool(only))


def _status(document: results.Document, *, is_named: bool) -> int:
    """0, 1 or 130; what the machine cannot make fails where it was asked for by name."""
    if any(result.missing == _ENDED for result in document.results):
        return _INTERRUPTED
    passes = (result.holds or (result.missing and not is_named) for result in document.results)
    return int(not all(passes))


def _add_left(played: list[Result], groups: Sequence[Group]) -> tuple[Result, ...]:
    """The results in order, with the rows that were not played to their end."""
    names = {result.row for result in played}
    rows = (row for group in groups for row in group if row.row not in names)
    everything = played + [Result.not_run(row, _ENDED) for row in rows]
    return tuple(sorted(everything, key=lambda result: (len(result.failure), result.failure)))


def _group(rows: list[Row], pairs: int, seed: int) -> Sequence[Group]:
    return draw_pairs(rows, pairs, seed) if pairs else [(row,) for row in rows]


def _list(rows: list[Row]) -> int:
    for row in rows:
        click.echo(f"{row.failure:<12} {row.row:<28} {row.says}")
    return 0


def _select(rows: list[Row], only: str | None, *, is_quick: bool) -> list[Row]:
    names = {name.strip() for name in (only or "").split(",") if name.strip()}
    lower = {name.lower(): name for row in rows for name in (row.row, row.failure)}
    unknown = sorted(name for name in names if name.lower() not in lower)
    if unknown or (only is not None and not names):
        text = f"{', '.join(unknown)}: unknown" if unknown else "no row is named"
        raise RowError(f"--only: {text}; lockstep gameday --list shows the rows")
    chosen = {lower[name.lower()] for name in names}
    return [
        row
        for row in rows
        if (not chosen or {row.row, row.failure} & chosen) and (row.quick or not is_quick)
    ]


def _refuse_what_is_missing(keep: Path, *files: Path | None) -> None:
    for names in _PROGRAMS:
        if not any(shutil.which(name) for name in names):
            raise click.UsageError(f"{names[-1]} is not on PATH; install it")
    for file in filter(None, files):
        if file.parent != keep and not os.access(file.parent, os.W_OK):
            raise click.UsageError(f"{file}: its folder is not there, or cannot be written")


def _lanes(groups: Sequence[Group], parallel: int) -> int:
    """How many groups are played at a time; a usage error where the memory is not enough."""
    free = _free_gigabytes()
    need = max((sum(row.gigabytes for row in group) for group in groups), default=0.1)
    size = len(groups[0]) if groups else 1
    lanes = int(min(max(1, parallel // size), (free - SERVERS_GIGABYTES) // need))
    if lanes < 1:
        raise click.UsageError(
            f"{free:.1f} GB of memory are free, and {need + SERVERS_GIGABYTES:.1f} GB are needed"
        )
    click.echo(f"{free:.1f} GB of memory are free: up to {lanes * size} rows at a time", err=True)
    return lanes


def _free_gigabytes() -> float:
    match = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    return int(match[1]) * 1024 / 1e9 if match else math.inf


def _strangers(folder: Path, groups: Sequence[Group]) -> tuple[str, ...]:
    """What the pager received of other clusters, a sentence each."""
    clusters = {row.cluster for group in groups for row in group}
    return tuple(
        f"{each.receiver} also received {', '.join(sorted(each.names()))} of "
        f"{', '.join(map(repr, sorted(each.clusters() - clusters)))}"
        for each in read_notifications(folder)
        if each.clusters() - clusters
    )


def play_all(groups: Sequence[Group], folder: Path, lanes: int, played: list[Result]) -> None:
    """Plays several groups of rows at a time, those of a group at once, and adds their results.

    A signal ends it early.
    """
    if not groups:
        return
    console = Console(stderr=True, highlight=False)
    console.print(f"starts the stack; evidence: {folder}", markup=False)
    clusters = {row.cluster for group in groups for row in group}
    with until_signal(), Stage(folder, clusters) as stage:
        _play_in_lanes(stage, groups, lanes, played, console)


def _play_in_lanes(
    stage: Stage, groups: Sequence[Group], lanes: int, played: list[Result], console: Console
) -> None:
    waiting = queue.SimpleQueue[Group]()
    # The longest first: the last to end decides when the game day is over.
    for group in sorted(groups, key=lambda group: -max(row.expected_seconds for row in group)):
        waiting.put(group)
    lane = partial(_play_lane, stage, waiting, played, console)
    threads = [threading.Thread(target=lane, daemon=True) for _ in range(min(lanes, len(groups)))]
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
    while not stage.stopped.is_set():
        try:
            group = waiting.get_nowait()
        except queue.Empty:
            return
        with ThreadPoolExecutor(len(group)) as pool:
            ends = [(row, pool.submit(_play_row, stage, console, row)) for row in group]
        for row, end in ends:
            error = end.exception()
            if not isinstance(error, StoppedError):
                # A row that breaks is one that fails, and the others go on.
                reason = f"{type(error).__name__}: {error}"
                result = Result.broken(row, reason) if error else end.result()
                played.append(result)
                _print_result(console, result)


def _play_row(stage: Stage, console: Console, row: Row) -> Result:
    began = time.monotonic()
    console.print(f"{row.row}: {row.says}", markup=False)
    findings = judge(row, _play(stage, row))
    return Result.of(row, findings, time.monotonic() - began)


def _print_result(console: Console, result: Result) -> None:
    word = "ok" if result.holds else "FAIL"
    console.print(f"{result.row}: {word} after {result.seconds:.0f} s", markup=False)
    for finding in result.findings:
        if not finding.holds:
            console.print(f"    {finding.column}: {finding.text}", markup=False)
