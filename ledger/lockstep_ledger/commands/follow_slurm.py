"""Follow Slurm's accounting on a schedule; restarts of Slurm and of the ledger are waited out."""

import os
import subprocess
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import click

from lockstep_cli.options import DurationRange, Parsed, bad_input, option
from lockstep_ledger.commands.import_events import (
    Document,
    Send,
    UnavailableError,
    deliver,
    poster,
    warn,
)
from lockstep_ledger.importers.sacct import Selection, SlurmFeed, list_partitions
from lockstep_ledger.options import follow_options
from lockstep_records.text.durations import parse_duration

_RETRY_SECONDS = 15.0
_SHOWN_REFUSALS = 10


def _read_since(text: str) -> float:
    """Seconds since 1970 of a date, which is UTC without a zone, or of a duration before now."""
    with suppress(ValueError):
        return time.time() - parse_duration(text)
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{text!r} is neither a duration nor a date; write 24h or 2026-12-01."
        ) from error


@click.command("slurm")
@follow_options
@option(
    "--every",
    "every_seconds",
    type=DurationRange(1.0),
    default="5m",
    help="Time between two runs of sacct.",
)
@click.option(
    "--since",
    "since_seconds",
    type=Parsed("TEXT", _read_since),
    help="Tell jobs from then on, again too: a duration before now, or a date; by default from"
    " where the last feed ended, and 24h at first.",
)
@click.option(
    "--state",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that remembers where the last poll ended; one a cluster under $STATE_DIRECTORY or"
    " ~/.local/state by default.",
)
@click.option(
    "--partition", "partitions", multiple=True, help="Only jobs of this partition; repeatable."
)
@click.option("--cpu-jobs", is_flag=True, help="Jobs that ask for no GPU too.")
@click.option(
    "--rounds", type=click.IntRange(1), help="Runs of sacct that succeed; unlimited by default."
)
def follow_slurm(
    *,
    url: str,
    token_file: Path | None,
    cluster: str,
    every_seconds: float,
    since_seconds: float | None,
    state: Path | None,
    partitions: tuple[str, ...],
    cpu_jobs: bool,
    rounds: int | None,
) -> None:
    """Deliver what Slurm's accounting knows of its jobs to a ledger, until interrupted."""
    with bad_input(OSError):
        send = _patient(poster(url, token_file))
        selection = Selection(partitions=frozenset(partitions), has_cpu_jobs=cpu_jobs)
        feed = SlurmFeed(state or _default_state(cluster), since_seconds, selection, warn, cluster)
        _check_partitions(partitions)
        completed = 0
        while completed != rounds:
            if completed:
                time.sleep(every_seconds)
            _poll_once(feed, cluster, send, min(every_seconds, _RETRY_SECONDS))
            completed += 1


def _poll_once(feed: SlurmFeed, cluster: str, send: Send, retry_seconds: float) -> None:
    left_out: list[str] = []
    last_error = ""

    def note(sentence: str) -> None:
        left_out.append(sentence)
        warn(sentence)

    feed.warn = note
    while True:
        now = time.time()
        try:
            news = list(feed.poll(now))
            break
        except subprocess.SubprocessError as error:
            if str(error) != last_error:
                last_error = str(error)
                warn(f"sacct failed and is run again: {error}")
            time.sleep(retry_seconds)
    # What became of these events is known once the report has left, and told with the next one.
    report = {"source": "slurm", "time": now, "left_out": len(left_out)}
    documents = (event.document() for event in news)
    counts, reasons = deliver(documents, cluster, send, {"feed": report | feed.answered})
    feed.answered = {
        "delivered": counts["stored"] + counts["duplicates"], "refused": counts["refused"],
    }  # fmt: skip
    feed.commit()
    if news:
        stored, refused = counts["stored"], counts["refused"]
        click.echo(f"{feed.num_rows} jobs asked: {stored} new events, {refused} refused")
    for reason in reasons[:_SHOWN_REFUSALS]:
        warn(f"refused: {reason}")


def _patient(post: Send) -> Send:
    def send(body: bytes) -> Document:
        is_logged = False
        while True:
            try:
                return post(body)
            except UnavailableError as error:
                if not is_logged:
                    warn(f"{error}; waiting for it")
                is_logged = True
                time.sleep(1.0)

    return send


def _check_partitions(names: tuple[str, ...]) -> None:
    names_of_slurm = list_partitions() if names else []
    for name in names:
        if names_of_slurm and name not in names_of_slurm:
            listed = ", ".join(names_of_slurm)
            warn(f"--partition {name!r} does not exist in this Slurm; it has {listed}")


def _default_state(cluster: str) -> Path:
    """This cluster's file in the folder that systemd or the user's session gives; or OSError."""
    folder = os.environ.get("STATE_DIRECTORY") or os.environ.get("XDG_STATE_HOME")
    path = Path(folder) if folder else Path.home() / ".local" / "state" / "lockstep"
    path.mkdir(parents=True, exist_ok=True)
    name = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in cluster)
    return path / f"slurm-feed-{name}.json"
