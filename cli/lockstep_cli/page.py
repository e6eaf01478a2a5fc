"""Prints the content of a rank page, or one sentence about what is wrong with it."""

import json
import math
from pathlib import Path
from typing import Any

import click

from lockstep_cli.options import bad_input
from lockstep_records.page.reader import Page, Values, read_page, read_rows
from lockstep_records.text.printable import printable

_MOST_ROWS = 5


def _lines(page: Page) -> list[str]:
    identity = {name: value for name, value in page.identity.items() if name not in _HIDDEN_FIELDS}
    lines = [f"{page.path}", "identity"]
    lines += [f"  {name:<22} {value}" for name, value in identity.items()]
    lines += ["now", f"  {'phase':<22} {page.phase}"]
    lines.append(f"  {'last progress':<22} {page.progress_wall_seconds:.3f} s since the epoch")
    for part in (page.state, page.periodic):
        values = {name: value for name, value in part.items() if name not in _HIDDEN_FIELDS}
        lines += [f"  {name:<22} {_format_value(value)}" for name, value in values.items()]
    return lines


def _format_value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{item} {count:g}" for item, count in value.items() if count) or "none"
    return "unknown" if value is None else str(value)


_HIDDEN_FIELDS = frozenset({"magic", "checksum", "present", "sequence", "step_buckets"})


def _row_line(row: Values) -> str:
    phases = " ".join(
        f"{name.removesuffix('_seconds')} {value * 1e3:.2f}"
        for name, value in row.items()
        if name.endswith("_seconds") and value
    )
    return f"  step {row['step']}: {row['seconds'] * 1e3:.2f} ms = {phases}"


def _replace_nan(value: Any) -> Any:
    """The value with NaN and infinities as text, which strict readers of JSON refuse as numbers."""
    if isinstance(value, dict):
        return {name: _replace_nan(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_replace_nan(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def print_page(page: Path, *, as_json: bool) -> None:
    """Writes a page to stdout: identity, state, totals and its last five steps.

    Raises:
        click.UsageError: the page is of another version, truncated or damaged.
    """
    with bad_input():
        read = read_page(page)
        rows = read_rows(read)
    if as_json:
        content = {
            "identity": read.identity,
            "phase": read.phase,
            "progress_ns": read.progress_ns,
            "state": read.state,
            "periodic": read.periodic,
            "rows": rows,
        }
        click.echo(json.dumps(_replace_nan(content), default=str, allow_nan=False))
        return
    click.echo("\n".join(map(printable, _lines(read))))
    click.echo(f"rows: {len(rows)} valid, the last {min(_MOST_ROWS, len(rows))} in milliseconds")
    for row in rows[-_MOST_ROWS:]:
        click.echo(_row_line(row))
