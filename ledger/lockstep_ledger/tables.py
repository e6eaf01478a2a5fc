"""Tables for people on a terminal, and JSON for machines."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep_records.text.printable import printable

_COLORS = {
    "succeeded": "green",
    "failed": "red",
    "unknown": "red",
    "time_limit": "red",
    "cancelled": "yellow",
    "preempted": "yellow",
    "not_converged": "yellow",
}


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table; numbers are set to the right, outcomes are coloured on a terminal."""
    body = [list(row) for row in rows]
    table = Table(title=Text(printable(title)), title_justify="left")
    for position, column in enumerate(columns):
        numeric = all(isinstance(row[position], int | float) for row in body) and bool(body)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in body:
        table.add_row(*(_cell(value) for value in row))
    console = Console()
    # A pipe has no width: a table folded at 80 columns cannot be searched.
    if not console.is_terminal:
        console = Console(width=200)
    console.print(table)


def print_json(document: Any) -> None:
    """Prints JSON on one line."""
    click.echo(json.dumps(document, separators=(",", ":")))


def expectation_rows(expected: Mapping[str, float | None]) -> list[tuple[str, str]]:
    """Name and value of what failures and checkpoints let expect; what is not known is left out."""
    formats = {
        "failures_per_node_day": ("failures a node and day", "{:.3g}"),
        "restart_seconds": ("restart", "{:.0f} s"),
        "save_seconds": ("steps wait for a checkpoint", "{:.1f} s"),
        "interval_seconds": ("interval of checkpoints", "{:.0f} s"),
        "expected_ettr_ratio": ("expected ETTR", "{:.1%}"),
        "best_interval_seconds": ("best interval of checkpoints", "{:.0f} s"),
        "best_ettr_ratio": ("expected ETTR with it", "{:.1%}"),
    }
    values = ((*form, expected[name]) for name, form in formats.items())
    return [(name, form.format(value)) for name, form, value in values if value is not None]


def money(costs: Mapping[str, float]) -> str:
    """Amounts by currency, one after the other."""
    return ", ".join(f"{amount:,.2f} {currency}".strip() for currency, amount in costs.items())


def percent(good: float, total: float) -> str:
    """A share for people; empty where there is nothing to have a share of."""
    return f"{good / total:.1%}" if total else ""


def _cell(value: object) -> Text:
    if value is None:
        return Text()
    text = f"{value:,.2f}" if isinstance(value, float) else printable(str(value))
    return Text(text, style=_COLORS.get(text, ""))
