"""Follow a scheduler: Slurm's accounting on a schedule, or a watch of Kubernetes."""

import queue
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from lockstep_ledger.commands.import_events import deliver, poster, report
from lockstep_ledger.importers.files import parse_offset
from lockstep_ledger.importers.kubernetes import KINDS, ObjectReader
from lockstep_ledger.importers.kubernetes_watch import ApiServer, KubernetesWatch
from lockstep_ledger.importers.sacct import read_sacct, run_sacct
from lockstep_ledger.options import FILE, check_name
from lockstep_records.events.event import Event
from lockstep_records.shared.options import DurationRange
from lockstep_records.shared.printable import printable
from lockstep_records.shared.token_files import read_token

# The next period reports a job that ended while sacct ran once more.
_OVERLAP_SECONDS = 300.0
_BATCH = 200
_GATHER_SECONDS = 0.5
_END = object()


@click.command()
@click.argument("scheduler", type=click.Choice(["slurm", "kubernetes"]))
@click.option("--url", required=True, help="The ledger, such as http://127.0.0.1:9450.")
@click.option("--token-file", type=FILE, help="File whose first line is a writer's token.")
@click.option(
    "--cluster",
    default="local",
    show_default=True,
    callback=check_name,
    help="Name of the cluster.",
)
@click.option(
    "--every",
    "every_seconds",
    type=DurationRange(1.0),
    default="5m",
    show_default=True,
    help="Time between two runs of sacct.",
)
@click.option(
    "--since",
    "since_seconds",
    type=DurationRange(0.0),
    default="24h",
    show_default=True,
    help="How far back the first run of sacct reaches.",
)
@click.option(
    "--utc-offset",
    default="+00:00",
    show_default=True,
    help="Slurm's clock minus UTC.",
)
@click.option("--rounds", type=click.IntRange(1), help="Runs of sacct; unlimited by default.")
@click.option("--api-url", help="Address of the API server; the pod's own by default.")
@click.option(
    "--api-token-file", type=FILE, help="Token for the API server; the pod's own by default."
)
@click.option("--api-ca", type=FILE, help="CA of the API server; the pod's own by default.")
def follow(
    *,
    scheduler: str,
    url: str,
    token_file: Path | None,
    cluster: str,
    every_seconds: float,
    since_seconds: float,
    utc_offset: str,
    rounds: int | None,
    api_url: str | None,
    api_token_file: Path | None,
    api_ca: Path | None,
) -> None:
    """Deliver what SCHEDULER knows of its jobs to a ledger, until interrupted."""
    try:
        send = poster(url, read_token(token_file) if token_file else "")
        if scheduler == "slurm":
            batches: Iterable[list[Event]] = _slurm_periods(
                every_seconds, since_seconds, parse_offset(utc_offset), rounds
            )
        else:
            server = ApiServer()
            if api_url is not None:
                server = ApiServer(url=api_url, token_file=api_token_file, ca_file=api_ca)
            batches = _kubernetes_batches(server, cluster)
        for batch in batches:
            counts, reasons = deliver((event.document() for event in batch), cluster, send)
            report(counts, reasons)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _slurm_periods(
    every_seconds: float, since_seconds: float, offset_seconds: int, rounds: int | None
) -> Iterator[list[Event]]:
    """The jobs of one period after the other, which overlap; what is known already counts once."""
    begin = time.time() - since_seconds
    completed = 0
    while True:
        end = time.time()
        try:
            lines = run_sacct(begin - _OVERLAP_SECONDS, end, offset_seconds)
            events = list(read_sacct(lines, utc_offset_seconds=offset_seconds)) if lines else []
        except OSError as error:
            raise ValueError(f"sacct cannot be run ({error}); run where Slurm is") from error
        except subprocess.SubprocessError as error:
            click.echo(f"sacct failed and is run again: {printable(str(error))}", err=True)
        else:
            yield events
            begin = end
        completed += 1
        if completed == rounds:
            return
        time.sleep(every_seconds)


def _kubernetes_batches(server: ApiServer, cluster: str) -> Iterator[list[Event]]:
    """Events of all kinds of objects, gathered for half a second; ends when all watches have."""
    waiting: queue.Queue[object] = queue.Queue(maxsize=10_000)
    reader = ObjectReader(cluster)

    def run(watch: KubernetesWatch) -> None:
        try:
            for event in watch.follow():
                waiting.put(event)
        except ValueError as error:
            waiting.put(error)
        finally:
            waiting.put(_END)

    client = server.client()
    running = len(KINDS)
    for kind in KINDS:
        watch = KubernetesWatch(server, client, kind, reader)
        threading.Thread(target=run, args=(watch,), daemon=True).start()
    while running:
        batch: list[Event] = []
        item = waiting.get()
        deadline = time.monotonic() + _GATHER_SECONDS
        while item is not None:
            if isinstance(item, ValueError):
                raise item
            if isinstance(item, Event):
                batch.append(item)
            else:
                running -= 1
            item = _next(waiting, deadline) if len(batch) < _BATCH else None
        if batch:
            yield batch


def _next(waiting: "queue.Queue[object]", deadline: float) -> object | None:
    try:
        return waiting.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        return None
