"""Costs of a period, and the statement of a month."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import tzinfo
from pathlib import Path

import click
import msgspec

from lockstep_cli.options import bad_input, rates_option, timezone_option
from lockstep_ledger import billing
from lockstep_ledger.options import json_option, store_option
from lockstep_ledger.store.database import disposing, open_store
from lockstep_ledger.tables import print_table
from lockstep_outcomes.prices.price import Pricing
from lockstep_outcomes.prices.rate_card import read_rate_card

Command = Callable[..., None]


def _bill_options(command: Command) -> Command:
    zone = timezone_option("Time zone of days and months.")
    month = click.option(
        "--month", metavar="YEAR-MONTH", help="Month such as 2026-10.  [default: the one that runs]"
    )
    is_csv = click.option("--csv", "is_csv", is_flag=True, help="Print CSV.")
    return store_option(rates_option(zone(month(is_csv(json_option(command))))))


def _choosing_options(command: Command) -> Command:
    for name in reversed(billing.CHOSEN):
        option = f"--{name.replace('_', '-')}"
        command = click.option(option, help=f"Only jobs of this {name.replace('_', ' ')}.")(command)
    return command


@contextmanager
def _opened(store: str, rates: Path | None, zone: tzinfo) -> Iterator[billing.Bills]:
    """The bills of a store, in one transaction; what is wrong is a usage error."""
    with bad_input():
        pricing = Pricing(read_rate_card(rates), zone)
        engine = open_store(store, read_only=True)
        with disposing(engine), engine.connect() as connection:
            yield billing.Bills(connection, pricing, time.time())


@click.command()
@_bill_options
@click.option("--from", metavar="DAY", help="First day, such as 2026-10-05.")
@click.option("--to", metavar="DAY", help="Last day, which counts too.")
@click.option(
    "--by", help=f"With commas between, some of {', '.join(billing.DIMENSIONS)}.  [project]"
)
@click.option("--sort", help="A measure, the largest first, or one of --by.  [amount]")
@_choosing_options
def costs(
    *, store: str, rates: Path | None, zone: tzinfo, is_csv: bool, is_json: bool, **given: str
) -> None:
    """Show what GPU time cost, by project, user, outcome, cause of waste (state) and the like."""
    with _opened(store, rates, zone) as bills:
        texts = {name: value for name, value in given.items() if value}
        question = billing.read_question(texts, bills.today)
        found = bills.costs(question)
    columns, rows = billing.cost_rows(question.by, found.rows)
    if is_json:
        click.echo(msgspec.json.encode(found).decode())
    elif is_csv:
        click.echo(billing.to_csv(columns, rows), nl=False)
    else:
        title = f"{question.first} to {question.last}, {zone}"
        print_table(title, columns, rows + billing.cost_rows(question.by, found.totals)[1])


@click.command()
@_bill_options
def statement(
    *, store: str, rates: Path | None, zone: tzinfo, month: str | None, is_csv: bool, is_json: bool
) -> None:
    """Show every line of a month, budgets and capacity."""
    with _opened(store, rates, zone) as bills:
        document = bills.statement(month or f"{bills.today:%Y-%m}")
    if is_json:
        click.echo(msgspec.json.encode(document).decode())
    elif is_csv:
        rows = (line.values() for line in document.lines)
        click.echo(billing.to_csv(billing.LINE_COLUMNS, rows), nl=False)
    else:
        _print_statement(document)


def _print_statement(document: billing.Statement) -> None:
    tables = {
        f"{document.month}, {document.timezone}": document.lines,
        "Totals": document.totals,
        "Budgets": document.budgets,
        "Capacity": document.capacity,
    }
    for title, rows in tables.items():
        if rows:
            print_table(title, list(rows[0]), [list(row.values()) for row in rows])
