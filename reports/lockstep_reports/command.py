"""Says who was slow in a job, since when, in which phase and what it cost; or nobody."""

import time
from pathlib import Path

import click

from lockstep_reports.read import Recording, read_source
from lockstep_reports.readers import ReadOptions
from lockstep_reports.render import json_text, write_html, write_json
from lockstep_reports.report import Report, make_report

_STDOUT = Path("-")
_WIDTH_OF_FILES = 120


@click.command()
@click.argument("job")
@click.option(
    "--json",
    "json_path",
    metavar="FILE|-",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the report as JSON; with - to standard output, and nothing else there.",
)
@click.option(
    "--html",
    "html_path",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where the page goes; ./lockstep-report-JOB.html when left out. With --json - a page is"
    " written only when this is given.",
)
@click.option(
    "--attempt",
    type=click.IntRange(0),
    help="Attempt to report; the newest one that has steps when left out.",
)
@click.option(
    "--meta",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Layout of an operation trace (YAML); meta-NAME.yaml beside trace-NAME when left out.",
)
@click.option(
    "--price-per-gpu-hour",
    type=click.FloatRange(0),
    help="Counts the loss in money too, in your currency.",
)
def report(
    job: str,
    *,
    json_path: Path | None,
    html_path: Path | None,
    attempt: int | None,
    meta: Path | None,
    price_per_gpu_hour: float | None,
) -> None:
    """Report on JOB: a job id, a job's folder, or the path of a recording.

    Prints the verdict and writes one self-contained HTML page. Exits with 2 and one sentence when
    there is nothing to report on.
    """
    recording = _read(job, ReadOptions(attempt=attempt, meta=meta))
    made = make_report(recording, now_seconds=time.time(), price_per_gpu_hour=price_per_gpu_hour)
    to_stdout = json_path == _STDOUT
    if html_path is None and not to_stdout:
        html_path = Path(f"lockstep-report-{recording.path.name}.html")
    _write(made, None if to_stdout else json_path, html_path)
    if to_stdout:
        click.echo(json_text(made), nl=False)
        return
    _print(made)
    for path in (json_path, html_path):
        if path is not None:
            click.echo(f"written: {path}")


def _print(made: Report) -> None:
    """Shows the report in the terminal."""
    from rich.console import Console  # noqa: PLC0415  # JSON need not wait for it

    from lockstep_reports.terminal import show  # noqa: PLC0415  # likewise

    console = Console()
    show(made, console if console.is_terminal else Console(width=_WIDTH_OF_FILES))


def _read(named: str, options: ReadOptions) -> Recording:
    try:
        return read_source(named, options)
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error)) from error


def _write(made: Report, json_path: Path | None, html_path: Path | None) -> None:
    try:
        if json_path is not None:
            write_json(made, json_path)
        if html_path is not None:
            write_html(made, html_path)
    except OSError as error:
        raise click.UsageError(
            f"cannot write {error.filename} ({error.strerror}); choose a place with"
            " --html or --json"
        ) from error
