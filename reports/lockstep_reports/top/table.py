"""Draws a snapshot as a table that fits the terminal."""

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from lockstep_records.shared.printable import printable
from lockstep_reports.top.snapshot import RankRow, Snapshot
from lockstep_reports.wording import clock, duration, milliseconds, plural

_BARS = "▁▂▃▄▅▆▇█"
_COLOURS = {
    **dict.fromkeys(("failed", "gone", "stopped", "stalled"), "bold red"),
    "training": "green",
    "done": "dim",
}
# Header, column names, footer and notes.
_NUM_OTHER_LINES = 6
_LATE_RATIO = 0.05
# Columns are left out below these widths, the least important first.
_NARROW, _WIDE = 78, 104
# Guards the division where no step has a duration yet.
_SMALL = 1e-9
_SPARK_CEILING_RATIO = 2.0  # a median step is half as high, so that longer ones stand out


class SnapshotView:
    """A snapshot for rich; it asks the console for its size each time it is drawn.

    Args:
        snapshot: the ranks.
        max_rows: number of rows at most; None for as many as the terminal is high.
    """

    def __init__(self, snapshot: Snapshot, max_rows: int | None = None) -> None:
        self._snapshot, self._max_rows = snapshot, max_rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or console.height
        snapshot, max_rows = self._snapshot, self._max_rows
        num_rows = max_rows if max_rows is not None else max(1, height - _NUM_OTHER_LINES)
        yield Group(
            _header(snapshot),
            _rank_table(snapshot, num_rows, options.max_width),
            _footer(snapshot, num_rows),
        )


def _header(snapshot: Snapshot) -> Text:
    jobs = {row.job_id for row in snapshot.rows}
    states = dict.fromkeys(("failed", "gone", "stopped", "stalled"), 0)
    for row in snapshot.rows:
        if row.state in states:
            states[row.state] += 1
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
    for state, count in states.items():
        if count:
            text.append(f"  {count:,} {state}", style=_COLOURS[state])
    return text


def _rank_table(snapshot: Snapshot, num_rows: int, width: int) -> Table:
    has_several_jobs = len({row.job_id for row in snapshot.rows}) > 1
    table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
    if has_several_jobs:
        table.add_column("job", no_wrap=True)
    table.add_column("rank", justify="right")
    table.add_column("node", no_wrap=True, max_width=24)
    table.add_column("state", no_wrap=True)
    table.add_column("step", justify="right")
    if width >= _NARROW:
        table.add_column("phase", no_wrap=True)
    table.add_column("lag, ms", justify="right")
    table.add_column("waits, ms", justify="right")
    if width >= _NARROW:
        table.add_column("step, ms", justify="right")
    if width >= _WIDE:
        table.add_column("tokens/s", justify="right")
        table.add_column("loss", justify="right")
        table.add_column("step time", no_wrap=True)
    top = _SPARK_CEILING_RATIO * (snapshot.step_seconds or 0.0)
    for row in snapshot.rows[:num_rows]:
        cells = _cells(row, width, top)
        table.add_row(*([Text(printable(row.job_id)), *cells] if has_several_jobs else cells))
    return table


def _cells(row: RankRow, width: int, top: float) -> list[Text]:
    late = (row.lag_seconds or 0.0) > _LATE_RATIO * (row.step_seconds or float("inf"))
    cells = [
        Text(str(row.rank), style="bold red" if late else ""),
        Text(printable(row.node)),
        Text(row.state, style=_COLOURS.get(row.state, "yellow")),
        Text(_formatted(row.step, "{:,}")),
    ]
    if width >= _NARROW:
        cells.append(Text(printable(row.phase or "-")))
    cells += [
        Text(_milliseconds(row.lag_seconds), style="bold red" if late else ""),
        Text(_milliseconds(row.wait_seconds)),
    ]
    if width >= _NARROW:
        cells.append(Text(_milliseconds(row.step_seconds)))
    if width >= _WIDE:
        cells += [
            Text(_formatted(row.tokens_per_second, "{:,.0f}")),
            Text(_formatted(row.loss, "{:.4g}")),
            Text(spark(row.step_times, top), style="cyan"),
        ]
    return cells


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else milliseconds(seconds)


def _formatted(value: float | None, template: str) -> str:
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
