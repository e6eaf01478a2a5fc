"""Draws a snapshot as a table that fits the terminal."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from lockstep_records.text.printable import printable
from lockstep_reports.top.snapshot import RankRow, Snapshot
from lockstep_reports.wording import clock, duration, milliseconds, plural

_BARS = "▁▂▃▄▅▆▇█"
_TROUBLE = ("failed", "gone", "stopped", "stalled")
_COLOURS = {**dict.fromkeys(_TROUBLE, "bold red"), "training": "green", "done": "dim"}
# Header, column names, footer and notes.
_NUM_OTHER_LINES = 6
_LATE_RATIO = 0.05
# Columns are left out below these widths, the least important first.
_NARROW, _WIDE = 78, 104
_MAX_NODE_WIDTH = 24
# Guards the division where no step has a duration yet.
_SMALL = 1e-9
_SPARK_CEILING_RATIO = 2.0  # a median step is half as high, so that longer ones stand out


@dataclass(frozen=True, slots=True)
class SnapshotView:
    """A snapshot for rich; it asks the console for its size each time it is drawn.

    Attributes:
        max_rows: number of rows at most; None for as many as the terminal is high.
    """

    snapshot: Snapshot
    max_rows: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or console.height
        num_rows = self.max_rows or max(1, height - _NUM_OTHER_LINES)
        yield _header(self.snapshot)
        yield _rank_table(self.snapshot, num_rows, options.max_width)
        yield _footer(self.snapshot, num_rows)


def _header(snapshot: Snapshot) -> Text:
    jobs = {row.job_id for row in snapshot.rows}
    states = Counter(row.state for row in snapshot.rows)
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(printable(snapshot.title), style="bold")
    if snapshot.state:
        text.append(f"  {printable(snapshot.state)}")
    text.append(f"  {clock(snapshot.wall_seconds)} UTC  {plural(len(snapshot.rows), 'rank')}")
    if len(jobs) > 1:
        text.append(f" of {plural(len(jobs), 'job')}")
    text.append(f"  step {duration(snapshot.step_seconds)} by {' and '.join(snapshot.clocks)}")
    if snapshot.tokens_per_second is not None:
        text.append(f"  {snapshot.tokens_per_second:,.0f} tokens/s")
    for state in _TROUBLE:
        if states[state]:
            text.append(f"  {states[state]:,} {state}", style=_COLOURS[state])
    return text


class _Column(NamedTuple):
    """A column that is shown from a width of the terminal on."""

    title: str
    cell: Callable[[RankRow], str]
    min_width: int = 0
    is_text: bool = False
    style: Callable[[RankRow], str] = lambda _: ""


def _list_columns(snapshot: Snapshot) -> tuple[_Column, ...]:
    ceiling = _SPARK_CEILING_RATIO * (snapshot.step_seconds or 0.0)
    return (
        _Column("rank", lambda row: str(row.rank), style=_mark_late),
        _Column("node", lambda row: row.node, is_text=True),
        _Column("state", lambda row: row.state, is_text=True, style=_colour_state),
        _Column("step", lambda row: _format(row.step, "{:,}")),
        _Column("phase", lambda row: row.phase or "-", _NARROW, is_text=True),
        _Column("lag, ms", lambda row: _milliseconds(row.lag_seconds), style=_mark_late),
        _Column("waits, ms", lambda row: _milliseconds(row.wait_seconds)),
        _Column("step, ms", lambda row: _milliseconds(row.step_seconds), _NARROW),
        _Column("tokens/s", lambda row: _format(row.tokens_per_second, "{:,.0f}"), _WIDE),
        _Column("loss", lambda row: _format(row.loss, "{:.4g}"), _WIDE),
        _Column(
            "step time", lambda row: spark(row.step_times, ceiling), _WIDE, True, lambda _: "cyan"
        ),
    )


def _rank_table(snapshot: Snapshot, num_rows: int, width: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
    columns = [column for column in _list_columns(snapshot) if width >= column.min_width]
    if len({row.job_id for row in snapshot.rows}) > 1:
        columns.insert(0, _Column("job", lambda row: row.job_id, is_text=True))
    for column in columns:
        table.add_column(
            column.title,
            justify="left" if column.is_text else "right",
            no_wrap=column.is_text,
            max_width=_MAX_NODE_WIDTH if column.title == "node" else None,
        )
    for row in snapshot.rows[:num_rows]:
        cells = (Text(printable(each.cell(row)), style=each.style(row)) for each in columns)
        table.add_row(*cells)
    return table


def _mark_late(row: RankRow) -> str:
    is_late = (row.lag_seconds or 0.0) > _LATE_RATIO * (row.step_seconds or float("inf"))
    return "bold red" if is_late else ""


def _colour_state(row: RankRow) -> str:
    return _COLOURS.get(row.state, "yellow")


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else milliseconds(seconds)


def _format(value: float | None, template: str) -> str:
    return "-" if value is None else template.format(value)


def spark(values: tuple[float, ...], top: float) -> str:
    """One bar per value, from 0 to ``top``."""
    if top <= _SMALL:
        return ""
    last = len(_BARS) - 1
    return "".join(_BARS[min(last, max(0, int(value / top * last + 0.5)))] for value in values)


def _footer(snapshot: Snapshot, num_rows: int) -> Text:
    text = Text(style="dim")
    num_hidden = len(snapshot.rows) - num_rows
    if num_hidden > 0:
        text.append(f"{plural(num_hidden, 'rank')} with less lag not shown. ")
    text.append("lag: own work beyond the job's median; waits: synchronisation; both per step")
    for note in snapshot.notes:
        text.append(f"\n{printable(note)}")
    return text
