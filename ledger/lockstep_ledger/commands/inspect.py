"""Look at jobs: a list with filters, and everything of one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from sqlalchemy import Connection

from lockstep_catalogue.vocabulary import FAILURE_CLASSES, GOODPUT_STATES, OUTCOMES
from lockstep_cli.options import option
from lockstep_ledger.merge.record import STATUSES
from lockstep_ledger.options import json_option, store_option
from lockstep_ledger.store import dead_letters as letters
from lockstep_ledger.store import queries
from lockstep_ledger.store.database import StoreError, disposing, open_store
from lockstep_ledger.tables import expectation_rows, money, print_json, print_table
from lockstep_records.text.durations import format_time
from lockstep_records.text.printable import printable

_HOUR_SECONDS = 3600.0
_COLUMNS = ("job", "cluster", "project", "queue", "status", "outcome", "class", "cause", "node",
            "started (UTC)", "ended (UTC)", "GPU hours", "cost")  # fmt: skip


@contextmanager
def reading(store: str) -> Iterator[Connection]:
    """A connection that reads the store, also beside a running ledger; or click.UsageError."""
    try:
        engine = open_store(store, read_only=True)
    except StoreError as error:
        raise click.UsageError(f"--store: {error}") from error
    with disposing(engine), engine.connect() as connection:
        yield connection


@click.command()
@store_option
@click.option("--cluster", help="Only jobs of this cluster.")
@click.option("--project", help="Only jobs of this project.")
@click.option("--queue", help="Only jobs of this queue.")
@click.option("--user", help="Only jobs of this user.")
@click.option("--status", type=click.Choice(STATUSES), help="Only jobs of this status.")
@click.option("--outcome", type=click.Choice(OUTCOMES), help="Only jobs of this outcome.")
@click.option(
    "--failure-class", type=click.Choice(FAILURE_CLASSES), help="Only failures of this class."
)
@click.option("--cause", help="Only jobs that ended for this cause.")
@option("--limit", type=click.IntRange(1, 500), default=50, help="Most rows to list.")
@json_option
def jobs(*, store: str, limit: int, is_json: bool, **filters: str | None) -> None:
    """List jobs, the newest first."""
    chosen = {name: value for name, value in filters.items() if value}
    with reading(store) as connection:
        page = queries.list_jobs(connection, chosen, limit)
    if is_json:
        print_json(page)
        return
    rows = [
        (
            job["job_id"], job["cluster"], job["project"], job["queue"], job["status"],
            job["outcome"], job["failure_class"], job["cause"], job["cause_node"],
            format_time(job["started"]), format_time(job["ended"]),
            # Where nobody states its GPUs their time is unknown, and not 0.
            job["gpu_seconds"] / _HOUR_SECONDS or None,
            money(job["costs"]),
        )
        for job in page["jobs"]
    ]  # fmt: skip
    print_table(f"{len(rows)} jobs", _COLUMNS, rows)
    if page["next"] is not None:
        click.echo(f"there are more; --limit {limit} shows the newest", err=True)


@click.command()
@click.argument("job_id")
@store_option
@click.option("--cluster", help="Cluster of the job; needed when two clusters have this id.")
@json_option
def job(*, job_id: str, store: str, cluster: str | None, is_json: bool) -> None:
    """Show one job: attempts, nodes, GPU time, timeline."""
    with reading(store) as connection:
        rows = queries.find_job(connection, job_id, cluster)
        if not rows:
            raise click.UsageError(
                f"job {job_id!r} is not in the store; lockstep ledger jobs lists"
            )
        if len(rows) > 1:
            names = ", ".join(sorted(row.cluster for row in rows))
            raise click.UsageError(f"job {job_id!r} is in the clusters {names}; add --cluster")
        document = queries.job_document(connection, rows[0])
    if is_json:
        print_json(document)
    else:
        _print_job(document)


@click.command("dead-letters")
@store_option
@option("--limit", type=click.IntRange(1, 500), default=50, help="Most rows to list.")
@json_option
def dead_letters(*, store: str, limit: int, is_json: bool) -> None:
    """List what was refused, with the reason, the newest first."""
    with reading(store) as connection:
        page = letters.newest(connection, limit)
    if is_json:
        print_json({"dead_letters": page})
        return
    columns = ("received (UTC)", "refusal", "reason", "event", "job", "node", "client")
    names = ("refusal", "reason", "event_id", "job_id", "node", "client")
    rows = [(format_time(letter["received"]), *(letter[name] for name in names)) for letter in page]
    print_table(f"{len(rows)} dead letters", columns, rows)


def effective_time_rows(job: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and value of what is measured, for people."""
    ratios = {
        "ETTR so far": job["ettr_ratio"],
        "ETTR of the last hour": job["last_hour_ettr_ratio"],
    }
    return [
        *((name, f"{ratio:.1%}") for name, ratio in ratios.items() if ratio is not None),
        *expectation_rows(job["expectation"]),
    ]


_FACTS = ("project", "queue", "job_class", "user", "world_size", "gpus", "gpu_model", "requeues",
          "preemptions", "resumes", "checkpoints", "last_checkpoint_step", "cause_node",
          "cause_rank")  # fmt: skip


def _print_job(job: dict[str, Any]) -> None:
    cause = " ".join(filter(None, (job["failure_class"], job["cause"], job["reason"])))
    where = f"{job['job_id']} on {job['cluster']}"
    click.echo(printable(f"{where}: {job['outcome'] or job['status']} {cause}"))
    facts = (f"{name}={job[name]}" for name in _FACTS if job[name] not in {None, ""})
    click.echo(printable("  ".join(facts)))
    for source, name, value, held in job["disagreements"]:
        click.echo(printable(f"the {source} says {name}={value}; {held} holds"))
    print_table(
        "Attempts",
        ("run", "attempt", "started (UTC)", "ended (UTC)", "nodes", "outcome", "reason"),
        [
            (
                entry["run"], entry["attempt"], format_time(entry["start"]),
                format_time(entry["end"]),
                len(entry["nodes"]), entry.get("outcome"),
                entry.get("reason") or entry.get("cause"),
            )
            for entry in job["attempts_list"]
        ],
    )  # fmt: skip
    total = sum(job["goodput"].values())
    hours = f", {total / _HOUR_SECONDS:,.2f} h" if total or job["gpus"] else ": nobody tells"
    states = [(state, job["goodput"][state]) for state in GOODPUT_STATES if state in job["goodput"]]
    print_table(
        f"GPU time{hours}",
        ("state", "GPU hours", "share"),
        [(state, s / _HOUR_SECONDS, f"{s / total:.1%}" if total else "") for state, s in states],
    )
    print_table("Effective training time", ("measure", "value"), effective_time_rows(job))
    _print_amendments(job["amendments"])
    print_table(
        f"Timeline, {len(job['timeline'])} of {job['num_events']} events",
        ("time (UTC)", "event", "node", "attempt", "fields"),
        [
            (format_time(e["time"]), e["kind"], e["node"] or "scheduler", e["attempt"], e["fields"])
            for e in job["timeline"]
        ],
    )


def _print_amendments(amendments: list[dict[str, Any]]) -> None:
    names = ("field", "before", "after", "why")
    rows = [(format_time(each["time"]), *(each[name] for name in names)) for each in amendments]
    if rows:
        print_table("Amendments", ("time (UTC)", *names), rows)
