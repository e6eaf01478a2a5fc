"""``lockstep dashboards snapshot``: a board as a file that needs neither Grafana nor network."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track

from lockstep_cli.options import DurationRange
from lockstep_dashboards.layout import find_board
from lockstep_dashboards.panel import Board
from lockstep_dashboards.scope import Scope, check_names, open_board, parse_range, read_wishes
from lockstep_dashboards.snapshot.answers import BoardAnswer, PanelAnswer, ask
from lockstep_dashboards.snapshot.page import THEMES, PageOptions, board_page, page_height
from lockstep_prometheus.client import Prometheus, PrometheusError
from lockstep_records.file_access.atomic_file import write_atomically

WIDTH_PIXELS = 1440
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_MAX_HEIGHT_PIXELS = 16_000  # Chromium draws nothing beyond 16,384
_TIMEOUT_SECONDS = 120.0
_FLAGS = (
    "--headless",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--hide-scrollbars",
    # The page's clock runs ahead until its scripts have drawn every figure.
    "--virtual-time-budget=20000",
)
_SIGNATURE = b"\x89PNG"


class ScreenshotError(ValueError):
    """No picture was drawn; the text says why and what to do."""


def find_chromium() -> str:
    """The browser's program; ScreenshotError where it is not on PATH."""
    for name in _PROGRAMS:
        if program := shutil.which(name):
            return program
    raise ScreenshotError(
        "--png needs Chromium, which is not on PATH; install it (Debian package chromium),"
        " or print the HTML from any browser"
    )


def take_screenshot(page: Path, picture: Path, height_pixels: int) -> None:
    """Writes a PNG of a page, 1440 pixels wide; OSError, or ScreenshotError without Chromium."""
    program = find_chromium()
    height = min(max(height_pixels, 200), _MAX_HEIGHT_PIXELS)
    with tempfile.TemporaryDirectory(prefix="lockstep-chromium-") as folder:
        drawn = Path(folder) / "page.png"
        # Chromium refuses its sandbox to root; the page is our own and asks no network.
        sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
        command = [
            program,
            *_FLAGS,
            *sandbox,
            f"--user-data-dir={folder}/profile",
            f"--window-size={WIDTH_PIXELS},{height}",
            f"--screenshot={drawn}",
            page.resolve().as_uri(),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=_TIMEOUT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise ScreenshotError(
                f"{program} drew nothing within {_TIMEOUT_SECONDS:.0f} s; the HTML is {page}"
            ) from error
        content = drawn.read_bytes() if drawn.is_file() else b""
        if not content.startswith(_SIGNATURE):
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
            raise ScreenshotError(f"{program} drew nothing ({lines[-1]}); the HTML is {page}")
        write_atomically(picture, content)


JOB = "job_id"
POINTS = 240  # a panel is 300 to 1,400 pixels wide
_MAX_NAMED_JOBS = 8


@click.command()
@click.argument("board")
@click.option("--prometheus", "url", required=True, help="Address, such as http://127.0.0.1:9090.")
@click.option(
    "--from",
    "begin",
    metavar="TIME",
    help="Begin of the window: -15m, an ISO 8601 date (UTC without a zone), or seconds since 1970;"
    " by default the board's own.",
)
@click.option(
    "--to", "end", default="now", show_default=True, metavar="TIME", help="End of the window."
)
@click.option("--job", help="Job of a board of one job; needed where there are more.")
@click.option("--cluster", multiple=True, help="Cluster; repeatable; all clusters by default.")
@click.option(
    "--var", "variables", multiple=True, metavar="NAME=VALUE", help="Another variable; repeatable."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="HTML file that is written; BOARD.html by default.",
)
@click.option("--png", is_flag=True, help="Also write a PNG next to it, by Chromium.")
@click.option(
    "--theme",
    type=click.Choice(THEMES),
    default="auto",
    show_default=True,
    help="Colours; auto takes the reader's.",
)
@click.option(
    "--links",
    "boards",
    metavar="URL",
    help="Where links to other boards lead: a Grafana, or lockstep dashboards serve.",
)
@click.option("--ledger", metavar="URL", help="Where links to the ledger lead.")
@click.option("--runbooks", metavar="URL", help="Folder that links to runbooks lead to.")
@click.option(
    "--scrape-interval",
    "scrape_seconds",
    type=DurationRange(0.1),
    help="Scrape interval of the data source; rates reach over four; asked of it by default.",
)
def snapshot(
    *,
    board: str,
    url: str,
    begin: str | None,
    end: str,
    job: str | None,
    cluster: tuple[str, ...],
    variables: tuple[str, ...],
    out: Path | None,
    png: bool,
    theme: str,
    scrape_seconds: float | None,
    **bases: str | None,
) -> int:
    """Write a board with its data as one HTML page, which works offline.

    BOARD is its name or its uid. Exits with 1 when a query failed; the panel shows why.
    """
    try:
        name, chosen = find_board(board)
        path = out or Path(f"{name}.html")
        _check_folder(path)
        wishes = read_wishes(variables, job, cluster)
        with Prometheus(url) as source:
            times = (begin or f"-{chosen.range}", end)
            answer = answer_board(chosen, source, times, wishes, scrape_seconds)
            options = PageOptions(address=source.address, theme=theme, bases=read_bases(bases))
        write_atomically(path, board_page(answer, options))
    except OSError as error:
        raise click.UsageError(f"--out {path}: {error.strerror}; name a writable file") from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    click.echo(path)
    if png:
        _write_picture(path, page_height(answer))
    return _report(answer)


def _check_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise ValueError(f"--out {path}: folder {path.parent} does not exist; create it")


def read_bases(urls: Mapping[str, str | None]) -> dict[str, str]:
    """The addresses that links begin with, of those given; ValueError for another scheme."""
    given = {name: url for name, url in urls.items() if url is not None}
    for name, url in given.items():
        if not url.startswith(("http://", "https://")):
            option = "links" if name == "boards" else name
            raise ValueError(f"--{option} {url!r} must begin with http:// or https://")
    return {name: url.rstrip("/") for name, url in given.items()}


def answer_board(
    board: Board,
    source: Prometheus,
    times: tuple[str, str],
    wishes: dict[str, tuple[str, ...]],
    scrape_seconds: float | None,
) -> BoardAnswer:
    """The answers to every query of a board; ValueError where anything it needs is missing."""
    range_seconds, end_seconds = parse_range(*times, time.time())
    scope = Scope(
        end=end_seconds,
        range_seconds=range_seconds,
        scrape_seconds=scrape_seconds or source.scrape_seconds(),
        chosen=wishes,
        max_points=POINTS,
    )
    check_names(board, wishes)
    scope = open_board(board, scope, source)
    jobs = scope.offered.get(JOB, ())
    # A page of the wrong job is worse than none: of several, none is taken.
    if len(jobs) > 1 and JOB not in wishes and JOB in scope.chosen:
        listed = ", ".join(jobs[:_MAX_NAMED_JOBS])
        where = f"{scope.text} at {source.address}"
        raise ValueError(f"several jobs have series {where}; name one by --job: {listed}")
    answer = ask(board, board.panels, scope, source, _progress)
    _check_some_data(answer, source)
    return answer


def _check_some_data(answer: BoardAnswer, source: Prometheus) -> None:
    if not answer.queried or not all(panel.is_empty for panel in answer.queried):
        return
    problems = [panel.problem for panel in answer.queried if panel.problem]
    if problems:
        raise PrometheusError(f"{source.address} refuses every query: {problems[0]}")
    raise PrometheusError(
        f"no panel of {answer.board.title!r} has data {answer.scope.text} at {source.address};"
        " choose another window"
    )


def _progress(answers: Iterable[PanelAnswer], count: int) -> Iterable[PanelAnswer]:
    console = Console(stderr=True)
    return track(
        answers,
        "asking Prometheus",
        total=count,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _write_picture(path: Path, height_pixels: int) -> None:
    picture = path.with_suffix(".png")
    try:
        with Console(stderr=True).status(f"drawing {picture} ..."):
            take_screenshot(path, picture, height_pixels)
    except OSError as error:
        raise click.UsageError(
            f"--png {picture}: {error.strerror}; name a writable file by --out"
        ) from error
    except ScreenshotError as error:
        raise click.UsageError(f"{error} (written: {path})") from error
    click.echo(picture)


def _report(answer: BoardAnswer) -> int:
    panels = answer.queried
    empty = sum(panel.is_empty for panel in panels)
    click.echo(
        f"{len(panels)} panels, {answer.num_queries} queries, {empty} panels without data", err=True
    )
    for panel in panels:
        if panel.problem:
            click.echo(f"panel {panel.panel.title!r}: {panel.problem}", err=True)
    return 1 if any(panel.problem for panel in panels) else 0
