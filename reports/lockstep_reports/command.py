"""Prints who was slow in a job, since when, in which phase and at what cost; or that nobody was."""

from collections.abc import Callable
from dataclasses import replace
from datetime import tzinfo
from functools import partial
from pathlib import Path

import click

from lockstep_cli.options import FiniteRange, option, rates_option, timezone_option
from lockstep_outcomes.prices.price import Pricing
from lockstep_outcomes.prices.rate_card import read_rate_card
from lockstep_records.files.jobs import newest_job
from lockstep_records.text.printable import printable
from lockstep_reports.document.comparison import compare
from lockstep_reports.document.model import Document
from lockstep_reports.readers import ADDRESSES, ReadOptions, read_source
from lockstep_reports.readers.engine import ENGINES, find_engine
from lockstep_reports.recording.recording import (
    LogRecording,
    Recording,
    Window,
    cut_before,
    cut_inside,
    parse_bound,
)
from lockstep_reports.render.outputs import FLAGS, Outputs, add_format_options, write_board
from lockstep_reports.report import make_document

_BASELINE = "baseline"


@click.command()
@click.argument("source", metavar="[SOURCE]", required=False)
@add_format_options
@click.option(
    "--attempt",
    type=click.IntRange(0),
    help="Number of the attempt; default the newest one that has steps.",
)
@click.option(
    "--meta",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Layout of an operation trace (YAML); default meta-NAME.yaml in the folder of trace-NAME.",
)
@click.option(
    "--job-id",
    metavar="ID",
    help="Job to select when SOURCE is a Prometheus that knows several jobs; in a folder of NCCL's"
    " Inspector the id of one of its communicators.",
)
@click.option(
    "--from",
    "first",
    metavar="STEP|TIME",
    help="First step, or time (ISO 8601 in UTC, epoch seconds, or an age such as -15m). Default:"
    " the whole recording; of a Prometheus the last 30 minutes.",
)
@click.option("--to", "last", metavar="STEP|TIME", help="Last step, or time; default the last one.")
@click.option(
    "--against",
    metavar="SOURCE|baseline",
    help="Recording to compare with; 'baseline' for the steps of SOURCE before --from.",
)
@click.option(
    "--price-per-gpu-hour",
    type=FiniteRange(0),
    help="The job's own price of a GPU-hour, where neither the rate card nor the job states one.",
)
@rates_option
@timezone_option("Time zone of the days from which rows of the rate card hold.")
@click.option(
    "--signs-from",
    metavar="URL",
    help="Prometheus in which signs of trouble on the nodes of slow ranks are looked for; default:"
    " SOURCE, where that is one.",
)
@option(
    "--engine",
    type=click.Choice(ENGINES),
    default=ENGINES[0],
    help="Where the parts of an archive are read: in this process, or by a Ray, whose workers need"
    " Lockstep and the same address of the archive.",
)
@click.option(
    "--address",
    metavar="HOST:PORT",
    help="The Ray; default that of RAY_ADDRESS, or one on this machine for this report alone.",
)
@click.option(
    "--board",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for a snapshot of the job's board over the time of the report, drawn from the"
    " Prometheus of SOURCE or --signs-from; the page links to it.",
)
def report(  # one parameter per option
    *,
    source: str | None,
    attempt: int | None,
    meta: Path | None,
    job_id: str | None,
    first: str | None,
    last: str | None,
    against: str | None,
    price_per_gpu_hour: float | None,
    rates: Path | None,
    zone: tzinfo,
    signs_from: str | None,
    engine: str,
    address: str | None,
    board: Path | None,
    **formats: Path | None,
) -> None:
    """Report on SOURCE: a job id, a job's folder, the path of a recording, or a Prometheus URL.

    Without SOURCE the report is on the job of this node that began last.

    Prints the verdict and writes one self-contained HTML page. Exits with 2 and one sentence when
    there is nothing to report on.
    """
    try:
        source = _find_newest() if source is None else source
        outputs = Outputs(paths={n: path for n, path in formats.items() if path}, board=board)
        signs_from = signs_from or (source if source.startswith(ADDRESSES) else None)
        options = ReadOptions(attempt=attempt, meta=meta, job_id=job_id, signs_from=signs_from)
        window = _parse_window(first, last, now=options.now_seconds)
        options = replace(options, window=window, engine=find_engine(engine, address))
        prices = Pricing(read_rate_card(rates), zone, price_per_gpu_hour)
        name, document = _make(source, against, options, partial(make_document, pricing=prices))
        _write(document, _add_default_page(outputs, name), signs_from)
    except (ValueError, OSError) as error:
        raise click.UsageError(printable(str(error))) from error


def _make(
    source: str,
    against: str | None,
    options: ReadOptions,
    make: Callable[[Recording | LogRecording], Document],
) -> tuple[str, Document]:
    """The name of the recording, and its document, compared with what ``--against`` names."""
    recording = read_source(source, replace(options, only_window=against != _BASELINE))
    _refuse_options_without_effect(source, options, recording, against)
    if isinstance(recording, LogRecording):
        document = make(recording)
    else:
        document = make(cut_inside(recording, options.window))
    if against == _BASELINE and isinstance(recording, Recording):
        baseline = make(cut_before(recording, options.window))
        document = compare(document, baseline, "the steps before the window")
    elif against is not None:
        # Neither window nor attempt apply: they were chosen for the other recording.
        other_options = ReadOptions(job_id=options.job_id, now_seconds=options.now_seconds)
        other = read_source(against, other_options)
        document = compare(document, make(other), other.path.name)
    return recording.path.name, document


def _find_newest() -> str:
    job = newest_job().name
    # Not to standard output, where a report for a program may go.
    click.echo(f"job {printable(job)}, the newest here; lockstep jobs lists the others", err=True)
    return job


def _parse_window(*bounds: str | None, now: float) -> Window:
    return Window(*(None if text is None else parse_bound(text, now) for text in bounds))


def _refuse_options_without_effect(
    source: str, options: ReadOptions, recording: Recording | LogRecording, against: str | None
) -> None:
    """An option that would change nothing is a mistake of the caller."""
    # Silence would let the caller believe that the report is on the job that was named.
    has_jobs = source.startswith(ADDRESSES) or recording.source_kind == "inspector"
    if options.job_id is not None and not has_jobs:
        raise ValueError("--job-id is for a Prometheus; give its http:// address, or leave it out")
    # A log has no such attribute; other recordings without operations have None.
    if options.meta is not None and getattr(recording, "operations", None) is None:
        raise ValueError(f"--meta is for operation traces, not for {source}; leave --meta out")
    if isinstance(recording, Recording):
        return
    # The first cause of a failure may be anywhere in a log.
    if options.window != Window():
        raise ValueError("a log is judged as a whole; leave out --from and --to")
    if against == _BASELINE:
        raise ValueError("a log has no window to hold against its baseline; give another log")


def _add_default_page(outputs: Outputs, name: str) -> Outputs:
    """Adds the page that is written unless a format goes to standard output."""
    # A pipe of JSON or Markdown should leave no file in the working folder.
    if "html" in outputs.paths or outputs.to_stdout:
        return outputs
    return replace(outputs, paths={**outputs.paths, "html": Path(f"lockstep-report-{name}.html")})


def _write(document: Document, outputs: Outputs, prometheus: str | None) -> None:
    if outputs.board is not None:
        write_board(document.published, prometheus, outputs.board)
    try:
        outputs.write(document)
    except OSError as error:
        raise ValueError(
            f"cannot write {error.filename or 'the output'} ({error.strerror}); choose another"
            f" place with one of {FLAGS}"
        ) from error
    if outputs.to_stdout:
        return
    from lockstep_reports.render.terminal import show  # noqa: PLC0415  # JSON need not wait for rich

    show(document)
    for path in outputs.files:
        click.echo(printable(f"written: {path}"))
