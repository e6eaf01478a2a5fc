"""Bills as tables: columns and rows that the terminal, the pages, JSON and CSV share."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from lockstep_ledger.money.accrual import Line
from lockstep_ledger.money.costs import MEASURES
from lockstep_records.text.durations import format_time

_HOUR_SECONDS, _HOURS = Decimal(3600), Decimal("0.01")
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
LINE_COLUMNS = ("month", "cluster", "job_id", "project", "user", "gpu_model", "outcome",
                "gpu_hours", "price", "currency", "amount")  # fmt: skip
CORRECTION_COLUMNS = ("month", "corrects", "cluster", "job_id", "project", "user", "gpu_hours",
                      "currency", "amount", "author", "booked", "reason", "event")  # fmt: skip
STATEMENT_COLUMNS = tuple(dict.fromkeys((*LINE_COLUMNS, *CORRECTION_COLUMNS)))


def line_row(line: Line, columns: Sequence[str] = STATEMENT_COLUMNS) -> list[object]:
    """The values of a line in some columns."""
    special: dict[str, object] = {
        "gpu_hours": (line.gpu_seconds / _HOUR_SECONDS).quantize(_HOURS),
        "price": line.price,
        "amount": line.amount,
        "booked": format_time(line.booked),
    }
    return [special[name] if name in special else line.value(name) for name in columns]


def statement_document(statement: Mapping[str, Any]) -> dict[str, Any]:
    """A statement whose lines and differences have the columns of a table, for JSON."""
    return {
        **statement,
        **{
            name: [
                dict(zip(STATEMENT_COLUMNS, line_row(line), strict=True))
                for line in statement[name]
            ]
            for name in ("lines", "differences")
        },
    }


def sum_differences(lines: Iterable[Line]) -> list[tuple[str, int, str, Decimal]]:
    """Month, number of lines, currency and amount of what closed months lack."""
    amounts: dict[tuple[str, str], list[Decimal]] = {}
    for line in lines:
        amounts.setdefault((line.corrects, line.currency), []).append(line.amount)
    return [
        (month, len(own), currency, sum(own, Decimal(0)))
        for (month, currency), own in amounts.items()
    ]


def cost_rows(
    by: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> tuple[tuple[str, ...], list[list[object]]]:
    """Columns and rows of costs that are grouped by some dimensions; rows may be totals."""
    columns = (*by, *MEASURES[:2], "currency", *MEASURES[2:])
    return columns, [[row.get(name, "total") for name in columns] for row in rows]


def to_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """CSV with a header; a text that a spreadsheet would compute has an apostrophe before it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(["" if value is None else _inert(value) for value in row])
    return text.getvalue()


def _inert(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULAS) else value
