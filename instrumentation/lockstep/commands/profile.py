"""Takes a torch.profiler trace of the next steps of chosen ranks, without a restart."""

import secrets
import time
from pathlib import Path
from typing import Any

import click

from lockstep.commands.switch import change_switches, job_or_usage
from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_cli.options import DurationRange, Parsed, option
from lockstep_records.events.event import is_finished, read_events
from lockstep_records.files.jobs import newest_pages
from lockstep_records.files.rank_files import fetch, read_answer
from lockstep_records.files.switches import MAX_PROFILED_STEPS, ProfileRequest
from lockstep_records.text.printable import printable

_POLL_SECONDS = 0.1


def _read_ranks(text: str) -> tuple[int, ...] | None:
    if text == "all":
        return None
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError as error:
        raise ValueError(f"{text!r} must be ranks such as 3,7, or all") from error


@click.command()
@click.argument("job")
@option("--steps", type=click.IntRange(1, MAX_PROFILED_STEPS), default=5, help="Number of steps.")
@option(
    "--ranks", type=Parsed("TEXT", _read_ranks), default="all", help="Ranks such as 3,7, or all."
)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the traces; ./lockstep-profile-JOB by default.",
)
@option(
    "--wait",
    "wait_seconds",
    type=DurationRange(1),
    default="5m",
    help="Time-out for the answers of all ranks.",
)
def profile(
    job: str, steps: int, ranks: tuple[int, ...] | None, out: Path | None, wait_seconds: float
) -> int:
    """Trace the next steps of ranks of JOB on this node, for Perfetto or chrome://tracing.

    Starting and writing a trace delays the traced ranks; the delay is printed. Exits with 1 when
    a rank has not answered in time.
    """
    folder = job_or_usage(job)
    pages = _pages_of_running(folder)
    requested = set(pages if ranks is None else ranks)
    if not requested or requested - set(pages):
        running = ", ".join(map(str, sorted(pages))) or "none"
        raise click.UsageError(f"--ranks: not all of them run on this node; here: {running}")
    # The id is in the names of the traces: those of an older request are not taken for these.
    request = ProfileRequest(id=f"p-{secrets.token_hex(4)}", steps=steps, ranks=ranks)
    change_switches(folder, profile=request)
    out = out or Path(f"lockstep-profile-{folder.name}")
    failed = _collect({rank: pages[rank] for rank in requested}, request.id, out, wait_seconds)
    # A rank that restarts later would read the request again.
    change_switches(folder, profile=None)
    return 1 if failed else 0


def _pages_of_running(job: Path) -> dict[int, Path]:
    """Paths of pages by rank, of ranks that may step again; UsageError if the job has ended."""
    pages = newest_pages(job)
    running = {page.identity["rank"]: page.path for page in pages if page.phase not in ENDED_PHASES}
    if is_finished(read_events(job)) or (pages and not running):
        raise click.UsageError(
            f"job {job.name} has ended, and only steps to come are traced; name one that runs"
        )
    return running


def _collect(pages: dict[int, Path], request: str, out: Path, wait_seconds: float) -> bool:
    """Moves traces as they are written, prints the cost of each; whether one is missing."""
    failed = False
    deadline = time.monotonic() + wait_seconds
    while pages and time.monotonic() < deadline:
        for rank, page in sorted(pages.items()):
            if (answer := read_answer(page, request)) is None:
                continue
            try:
                moved = fetch(page, request, out)
            except OSError as error:
                moved, answer = None, {"error": f"it cannot be fetched: {error}"}
            del pages[rank]
            failed |= moved is None
            click.echo(printable(_sentence(rank, moved, answer)))
        time.sleep(_POLL_SECONDS)
    for rank in sorted(pages):
        click.echo(f"rank {rank}: no answer within {wait_seconds:g} s; does it still step?")
    return failed or bool(pages)


def _sentence(rank: int, trace: Path | None, answer: dict[str, Any]) -> str:
    """Where the trace of a rank lies and how long taking it held the rank up."""
    if trace is None:
        return f"rank {rank}: no trace, for {answer.get('error', 'the rank gave no reason')}"
    parts = ("start", "stop", "export")
    held = {
        part: seconds
        for part in parts
        if isinstance(seconds := answer.get(f"{part}_seconds"), int | float)
    }
    each = ", ".join(f"{part} {seconds:.2f} s" for part, seconds in held.items())
    size = f"{trace.stat().st_size / 1e6:.1f} MB"
    return f"rank {rank}: {trace} ({size}), held up for {sum(held.values()):.2f} s ({each})"
