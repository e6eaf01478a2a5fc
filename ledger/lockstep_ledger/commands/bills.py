"""Costs of a period, the statement of a month, closing a month and correcting it."""

import getpass
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import tzinfo
from pathlib import Path
from typing import Any

import click
import msgspec

from lockstep_cli.options import bad_input
from lockstep_ledger.billing import months
from lockstep_ledger.billing.documents import Bills
from lockstep_ledger.billing.render import (
    CORRECTION_COLUMNS,
    LINE_COLUMNS,
    STATEMENT_COLUMNS,
    cost_rows,
    line_row,
    statement_document,
    to_csv,
)
from lockstep_ledger.money.accrual import Line
from lockstep_ledger.money.costs import CHOSEN, DIMENSIONS, read_question
from lockstep_ledger.money.rate_card import read_rate_card
from lockstep_ledger.options import json_option, rates_option, store_option, timezone_option
from lockstep_ledger.store.database import disposing, open_store
from lockstep_ledger.tables import print_table

Command = Callable[..., None]
_author_option = click.option(
    "--author", default=getpass.getuser, help="Who does it, for the audit.  [default: the user]"
)


def _bill_options(command: Command) -> Command:
    zone = timezone_option("Time zone of days and months.")
    return store_option(rates_option(zone(command)))


def _form_options(command: Command) -> Command:
    month = click.option(
        "--month", metavar="YEAR-MONTH", help="Month such as 2026-10.  [default: the one that runs]"
    )
    is_csv = click.option("--csv", "is_csv", is_flag=True, help="Print CSV.")
    return month(is_csv(json_option(command)))


def _choosing_options(command: Command) -> Command:
    for name in reversed(CHOSEN):
        option = f"--{name.replace('_', '-')}"
        command = click.option(option, help=f"Only jobs of this {name.replace('_', ' ')}.")(command)
    return command


@contextmanager
def _opened(
    store: str, rates: Path | None, zone: tzinfo, *, is_writing: bool = False
) -> Iterator[Bills]:
    """The bills of a store, in one transaction; what is wrong is a usage error."""
    with bad_input():
        card = read_rate_card(rates)
        engine = open_store(store, read_only=not is_writing)
        with disposing(engine), engine.begin() as connection:
            yield Bills(connection, card, zone, time.time())


@click.command()
@_bill_options
@_form_options
@click.option("--from", metavar="DAY", help="First day, such as 2026-10-05.")
@click.option("--to", metavar="DAY", help="Last day, which counts too.")
@click.option("--by", help=f"With commas between, some of {', '.join(DIMENSIONS)}.  [project]")
@click.option("--sort", help="A measure, the largest first, or one of --by.  [amount]")
@_choosing_options
def costs(
    *, store: str, rates: Path | None, zone: tzinfo, is_csv: bool, is_json: bool, **given: str
) -> None:
    """Show what GPU time cost, by project, user, outcome, cause of waste (state) and the like."""
    with _opened(store, rates, zone) as bills:
        texts = {name: value for name, value in given.items() if value}
        question = read_question(texts, bills.today)
        found = bills.costs(question)
    columns, rows = cost_rows(question.by, found.rows)
    if is_json:
        click.echo(msgspec.json.encode(found).decode())
    elif is_csv:
        click.echo(to_csv(columns, rows), nl=False)
    else:
        title = f"{question.first} to {question.last}, {zone}"
        print_table(title, columns, rows + cost_rows(question.by, found.totals)[1])


@click.command()
@_bill_options
@_form_options
def statement(
    *, store: str, rates: Path | None, zone: tzinfo, month: str | None, is_csv: bool, is_json: bool
) -> None:
    """Show every line of a month: jobs and corrections, budgets, capacity, and what differs."""
    with _opened(store, rates, zone) as bills:
        document = bills.statement(month or f"{bills.today:%Y-%m}")
    if is_json:
        click.echo(msgspec.json.encode(statement_document(document)).decode())
    elif is_csv:
        click.echo(to_csv(STATEMENT_COLUMNS, map(line_row, document["lines"])), nl=False)
    else:
        _print_statement(document)


def _print_statement(document: dict[str, Any]) -> None:
    closed: months.ClosedMonth | None = document["closed"]
    state = f"closed by {closed.author}" if closed else "open"
    own = [line_row(line, LINE_COLUMNS) for line in document["lines"] if not line.corrects]
    print_table(f"{document['month']}, {document['timezone']}, {state}", LINE_COLUMNS, own)
    corrections = [line for line in document["lines"] if line.corrects]
    _print_corrections("Corrections booked in it", corrections)
    for name in ("totals", "budgets", "capacity"):
        if document[name]:
            rows = [list(row.values()) for row in document[name]]
            print_table(name.capitalize(), list(document[name][0]), rows)
    _print_corrections("Closed months that differ; nobody has booked it", document["differences"])


def _print_corrections(title: str, lines: list[Line]) -> None:
    if lines:
        rows = [line_row(line, CORRECTION_COLUMNS) for line in lines]
        print_table(title, CORRECTION_COLUMNS, rows)


@click.command()
@click.argument("month")
@_bill_options
@_author_option
def close(*, month: str, store: str, rates: Path | None, zone: tzinfo, author: str) -> None:
    """Close MONTH: its lines stay, and what changes later is a correction of the open month."""
    with _opened(store, rates, zone, is_writing=True) as bills:
        lines = bills.close(month, author)
    click.echo(f"{month} is closed with {len(lines)} lines", err=True)


@click.command()
@click.argument("month")
@_bill_options
@_author_option
@click.option("--reason", help="Why; without it nothing is booked.")
def correct(
    *, month: str, store: str, rates: Path | None, zone: tzinfo, author: str, reason: str | None
) -> None:
    """Show what the closed MONTH would be now and is not, and book it with --reason."""
    with _opened(store, rates, zone, is_writing=True) as bills:
        lines = bills.differences(month)
        if reason:
            audit = {"author": author, "reason": reason}
            lines = months.book(bills.connection, lines, **audit, now=bills.now)
    _print_corrections(f"Corrections to {month}", lines)
    outcome = "booked" if reason else "not booked; give --reason to book them"
    click.echo(f"{len(lines)} corrections to {month}, {outcome}", err=True)
