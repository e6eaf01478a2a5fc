"""Serve the ledger over HTTP."""

from pathlib import Path
from typing import Any

import click

from lockstep_cli import options
from lockstep_cli.options import option
from lockstep_ledger.options import FILE, HOST, LABEL_VALUE, store_option

_DAY_SECONDS = 86_400.0
# The longest window counts rows of 28 days, which events may still change.
_SHORTEST_KEEPING = 29 * _DAY_SECONDS
_NAMES: dict[str, Any] = {"multiple": True, "metavar": "NAME", "type": LABEL_VALUE}


@click.command()
@option(
    "--listen",
    type=options.Parsed("HOST:PORT", options.read_address),
    default="127.0.0.1:9450",
    help="Address to listen on; port 0 takes any free one.",
)
@store_option
@option(
    "--cluster",
    "clusters",
    default=("local",),
    envvar="LOCKSTEP_CLUSTER",
    help="Cluster that is counted by its name, from 0 on; others are counted as other; repeatable.",
    **_NAMES,
)
@click.option("--queue", "queues", **_NAMES, help="Queue to count from 0 on; repeatable.")
@click.option("--project", "projects", **_NAMES, help="Project to count from 0 on; repeatable.")
@click.option(
    "--job-class", "job_classes", **_NAMES, help="Job class to count from 0 on; repeatable."
)
@click.option("--writer-tokens", type=FILE, help="File of tokens that may deliver, one a line.")
@click.option("--reader-tokens", type=FILE, help="File of tokens that may read, one a line.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    type=HOST,
    multiple=True,
    envvar="LOCKSTEP_LEDGER_HOSTS",
    help="Name by which clients call the ledger, besides its address; repeatable.",
)
@click.option("--tls-cert", type=FILE, help="Certificate in PEM; with --tls-key.")
@click.option("--tls-key", type=FILE, help="Key of the certificate in PEM, without a password.")
@click.option(
    "--scrape-interval",
    "scrape_interval_seconds",
    type=options.DurationRange(0.0, 3600.0),
    default=15.0,
    show_default="15s",
    help="Longest scrape interval; a new series is served as 0 for 1.5 times as long.",
)
@click.option(
    "--node-wait",
    "node_wait_seconds",
    type=options.DurationRange(0.0, 30 * _DAY_SECONDS),
    default=600.0,
    show_default="10m",
    help="How long a job waits for its other nodes after the first has ended.",
)
@click.option(
    "--requeue-wait",
    "requeue_wait_seconds",
    type=options.DurationRange(0.0, 30 * _DAY_SECONDS),
    default=_DAY_SECONDS,
    show_default="1d",
    help="How long a preempted job may wait in the queue before preempted is its outcome.",
)
@click.option(
    "--keep-events",
    "keep_events_seconds",
    type=options.DurationRange(_SHORTEST_KEEPING),
    help="After this time only events that a settled job's record needs are kept; by default all.",
)
@click.option(
    "--keep-names",
    "keep_names_seconds",
    type=options.DurationRange(_SHORTEST_KEEPING),
    help="After this time users, names and texts of people leave a settled job; by default never.",
)
@click.option(
    "--silent-wait",
    "silent_wait_seconds",
    type=options.DurationRange(60.0, 400 * _DAY_SECONDS),
    default=21_600.0,
    show_default="6h",
    help="How long a job of which no scheduler speaks may send nothing before it is unknown.",
)
@option(
    "--max-body",
    "max_body_bytes",
    metavar="BYTES",
    type=click.IntRange(1 << 20, 64 << 20),
    default=1 << 20,
    help="Limit of the size of a request's body.",
)
@option(
    "--max-rate",
    "requests_per_second",
    type=options.FiniteRange(0.1, 1e6),
    default=100.0,
    help="Limit of requests a second for each client; a burst may hold ten seconds' worth.",
)
@options.rates_option
@options.timezone_option("Time zone of the days and months of bills.")
def serve(**values: Any) -> None:
    """Serve the ledger: takes events, serves /metrics, /api and two pages for people."""
    from lockstep_ledger.program import Settings, run  # noqa: PLC0415  # --help needs no server

    _check_access(values)
    run(Settings(**values))


def _check_access(values: dict[str, Any]) -> None:
    host: str = values["listen"][0]
    tls: tuple[Path | None, Path | None] = values["tls_cert"], values["tls_key"]
    if (tls[0] is None) != (tls[1] is None):
        given, missing = (
            ("--tls-key", "--tls-cert") if tls[0] is None else ("--tls-cert", "--tls-key")
        )
        raise click.UsageError(f"{given} needs {missing} too; give both")
    is_loopback = host in {"localhost", "::1"} or host.startswith("127.")
    if not is_loopback and not (values["writer_tokens"] and values["reader_tokens"]):
        raise click.UsageError(
            f"--listen {host} is open to the network: give --writer-tokens and --reader-tokens, "
            "or listen on 127.0.0.1"
        )
