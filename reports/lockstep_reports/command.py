"""Says who was slow in a job, since when, in which phase and what it cost; or nobody."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from lockstep_records.jobs import find_job, list_attempts
from lockstep_records.options import FiniteRange
from lockstep_reports.compare import Comparison, compare
from lockstep_reports.incident import LogReport, make_log_report
from lockstep_reports.read import read_source
from lockstep_reports.readers import ReadOptions
from lockstep_reports.recording.log_recording import LogRecording
from lockstep_reports.recording.recording import Recording
from lockstep_reports.recording.window import before, cut
from lockstep_reports.recording.window_spec import Window, parse_bound
from lockstep_reports.render.outputs import Outputs, show
from lockstep_reports.report import Report, make_report

_BASELINE = "baseline"
_FILE = click.Path(path_type=Path, dir_okay=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """What is to be reported on, and with what."""

    options: ReadOptions
    price_per_gpu_hour: float | None
    now_seconds: float


@click.command()
@click.argument("job")
@click.option(
    "--json",
    metavar="FILE|-",
    type=_FILE,
    help="Write the report as JSON; with - to standard output, and nothing else there.",
)
@click.option(
    "--html",
    metavar="FILE",
    type=_FILE,
    help="Where the page goes; ./lockstep-report-JOB.html when left out. With --json - or"
    " --markdown - a page is written only when this is given.",
)
@click.option(
    "--markdown",
    metavar="FILE|-",
    type=_FILE,
    help="Write the report as Markdown, for an incident tracker; - as with --json.",
)
@click.option(
    "--perfetto",
    metavar="FILE",
    type=_FILE,
    help="Write a trace for ui.perfetto.dev; packed by gzip when the name ends in .gz.",
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
@click.option("--job", "job_id", metavar="ID", help="Which job of a Prometheus.")
@click.option(
    "--from",
    "first",
    metavar="STEP|TIME",
    help="First step, or time (ISO 8601 as UTC, epoch seconds, -15m), to look at. A Prometheus is"
    " looked at over the last 30 minutes when left out.",
)
@click.option("--to", "last", metavar="STEP|TIME", help="Last step or time to look at.")
@click.option(
    "--against",
    metavar="JOB|baseline",
    help="Compare with another recording; or, as 'baseline', with the steps before --from.",
)
@click.option(
    "--export",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the operations of sampled steps into DIR as Parquet, in the columns of the"
    " published straggler traces, and no report.",
)
@click.option(
    "--price-per-gpu-hour",
    type=FiniteRange(0),
    help="Counts the loss in money too, in your currency.",
)
def report(job: str, *, against: str | None, **told: Any) -> None:
    """Report on JOB: a job id, a job's folder, the path of a recording, or a Prometheus' address.

    Prints the verdict and writes one self-contained HTML page. Exits with 2 and one sentence when
    there is nothing to report on.
    """
    now = time.time()
    try:
        if told["export"] is not None:
            _export(job, told["attempt"], told["export"])
            return
        outputs = Outputs(**{name: told[name] for name in ("json", "html", "markdown", "perfetto")})
        asked = _Asked(
            options=_options(told, now),
            price_per_gpu_hour=told["price_per_gpu_hour"],
            now_seconds=now,
        )
        whole = read_source(job, asked.options)
        _refuse_what_is_not_for(job, whole, asked.options)
        made = _make(_cut(whole, asked), asked)
        comparison = None if against is None else _compare(made, whole, against, asked)
        _write(made, comparison, _with_page(outputs, whole.path.name))
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error)) from error


def _refuse_what_is_not_for(
    job: str, recording: Recording | LogRecording, options: ReadOptions
) -> None:
    """An option that would change nothing is a mistake of who gave it."""
    if options.job_id is not None and not job.startswith(("http://", "https://")):
        raise ValueError("--job is for a Prometheus; give its http:// address, or leave --job out")
    if options.meta is not None and getattr(recording, "operations", None) is None:
        raise ValueError(f"--meta is for operation traces, and {job} is none; leave --meta out")


def _export(job: str, attempt: int | None, folder: Path) -> None:
    from lockstep_reports.export import export_operations  # noqa: PLC0415  # pyarrow loads slowly

    path = find_job(job).resolve()
    attempts = [one for one in list_attempts(path) if attempt is None or int(one.name) == attempt]
    if not attempts:
        raise ValueError(f"attempt {attempt} is not in {path}")
    made = export_operations(attempts[-1], path.name, folder)
    click.echo(
        f"written: {made.trace} ({made.rows} operations, {made.steps} steps, {made.ranks} ranks)"
    )


def _options(told: dict[str, Any], now: float) -> ReadOptions:
    bounds = (parse_bound(t, now) if t is not None else None for t in (told["first"], told["last"]))
    window = Window(**dict(zip(("first", "last"), bounds, strict=True)))
    return ReadOptions(
        attempt=told["attempt"], meta=told["meta"], job_id=told["job_id"], window=window
    )


def _cut(recording: Recording | LogRecording, asked: _Asked) -> Recording | LogRecording:
    if isinstance(recording, LogRecording):
        if not asked.options.window.is_open:
            raise ValueError(
                "a log is judged as a whole; leave out --from and --to"
            )  # the user's file
        return recording
    return cut(recording, asked.options.window)


def _make(recording: Recording | LogRecording, asked: _Asked) -> Report | LogReport:
    if isinstance(recording, LogRecording):
        return make_log_report(recording, now_seconds=asked.now_seconds)
    return make_report(
        recording, now_seconds=asked.now_seconds, price_per_gpu_hour=asked.price_per_gpu_hour
    )


def _compare(
    made: Report | LogReport, whole: Recording | LogRecording, against: str, asked: _Asked
) -> Comparison:
    if against != _BASELINE:
        other = read_source(against, ReadOptions(job_id=asked.options.job_id))
        return compare(made, _make(other, asked), other.path.name)
    if not isinstance(whole, LogRecording):
        baseline = _make(before(whole, asked.options.window), asked)
        return compare(made, baseline, "the steps before the window")
    raise ValueError("a log has no window to hold against its baseline; give another log")


def _with_page(outputs: Outputs, name: str) -> Outputs:
    """With the page that is written when nobody asked for standard output."""
    if outputs.html is not None or outputs.to_stdout:
        return outputs
    return Outputs(
        json=outputs.json,
        html=Path(f"lockstep-report-{name}.html"),
        markdown=outputs.markdown,
        perfetto=outputs.perfetto,
    )


def _write(made: Report | LogReport, comparison: Comparison | None, outputs: Outputs) -> None:
    try:
        outputs.write(made, comparison)
    except OSError as error:
        raise ValueError(
            f"cannot write {error.filename} ({error.strerror}); choose another place with --html,"
            " --json, --markdown or --perfetto"
        ) from error
    if outputs.to_stdout:
        return
    show(made, comparison)
    for path in outputs.files:
        click.echo(f"written: {path}")
