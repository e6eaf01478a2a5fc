"""Says who was slow in a job, since when, in which phase and what it cost; or nobody."""

import time
from pathlib import Path

import click

from lockstep_records.jobs import find_job, list_attempts
from lockstep_reports.incident import LogRecording, LogReport, make_log_report
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
@click.option(
    "--export",
    "export_folder",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the operations of sampled steps into DIR as Parquet, in the columns of the"
    " published straggler traces, and no report.",
)
def report(
    job: str,
    *,
    json_path: Path | None,
    html_path: Path | None,
    attempt: int | None,
    meta: Path | None,
    price_per_gpu_hour: float | None,
    export_folder: Path | None,
) -> None:
    """Report on JOB: a job id, a job's folder, or the path of a recording.

    Prints the verdict and writes one self-contained HTML page. Exits with 2 and one sentence when
    there is nothing to report on.
    """
    if export_folder is not None:
        _export(job, attempt, export_folder)
        return
    recording = _read(job, ReadOptions(attempt=attempt, meta=meta))
    made = _make(recording, price_per_gpu_hour)
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


def _make(
    recording: Recording | LogRecording, price_per_gpu_hour: float | None
) -> Report | LogReport:
    now = time.time()
    if isinstance(recording, LogRecording):
        return make_log_report(recording, now_seconds=now)
    return make_report(recording, now_seconds=now, price_per_gpu_hour=price_per_gpu_hour)


def _print(made: Report | LogReport) -> None:
    """Shows the report in the terminal."""
    from rich.console import Console  # noqa: PLC0415  # JSON need not wait for it

    from lockstep_reports.incident_text import show_incident  # noqa: PLC0415  # likewise
    from lockstep_reports.terminal import show  # noqa: PLC0415  # likewise

    console = Console()
    console = console if console.is_terminal else Console(width=_WIDTH_OF_FILES)
    if isinstance(made, LogReport):
        show_incident(made, console)
    else:
        show(made, console)


def _export(job: str, attempt: int | None, folder: Path) -> None:
    from lockstep_reports.export import export_operations  # noqa: PLC0415  # pyarrow loads slowly

    try:
        path = find_job(job).resolve()
        attempts = [
            one for one in list_attempts(path) if attempt is None or int(one.name) == attempt
        ]
        if not attempts:
            raise ValueError(f"attempt {attempt} is not in {path}")  # noqa: TRY301  # said once, below
        made = export_operations(attempts[-1], path.name, folder)
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error)) from error
    click.echo(
        f"written: {made.trace} ({made.rows} operations, {made.steps} steps, {made.ranks} ranks)"
    )


def _read(named: str, options: ReadOptions) -> Recording | LogRecording:
    try:
        return read_source(named, options)
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error)) from error


def _write(made: Report | LogReport, json_path: Path | None, html_path: Path | None) -> None:
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
