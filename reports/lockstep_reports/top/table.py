"""Draws a look as a table that fits the terminal it is drawn in."""

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from lockstep_reports.top.snapshot import Look, RankRow
from lockstep_reports.wording import clock, duration, milliseconds, plural, printable

_BARS = "▁▂▃▄▅▆▇█"
_COLOURS = {"failed": "bold red", "stalled": "bold red", "training": "green", "done": "dim"}
_LINES_AROUND = 6
_LATE_RATIO = 0.05
_NARROW, _WIDE = 78, 104
_SMALL = 1e-9
_SPARK_ROOF = 2.0  # a usual step is half as high, and what takes longer stands out


class View:
    """A look; asks the console for its size each time it is drawn.

    Args:
        most: rows shown at most; None for as many as the terminal is high.
    """

    def __init__(self, look: Look, most: int | None = None) -> None:
        self._look, self._most = look, most

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or console.height
        room = self._most if self._most is not None else max(1, height - _LINES_AROUND)
        yield Group(
            _head(self._look), _table(self._look, room, options.max_width), _foot(self._look, room)
        )


def _head(look: Look) -> Text:
    jobs = {row.job_id for row in look.rows}
    states = dict.fromkeys(("failed", "stalled"), 0)
    for row in look.rows:
        if row.state in states:
            states[row.state] += 1
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(printable(look.title), style="bold")
    text.append(f"  {clock(look.at)} UTC  {plural(len(look.rows), 'rank')}")
    if len(jobs) > 1:
        text.append(f" of {plural(len(jobs), 'job')}")
    text.append(f"  step {duration(look.step_seconds)}")
    if look.tokens_per_second is not None:
        text.append(f"  {look.tokens_per_second:,.0f} tokens/s")
    for state, count in states.items():
        if count:
            text.append(f"  {count:,} {state}", style=_COLOURS[state])
    return text


def _table(look: Look, room: int, width: int) -> Table:
    several = len({row.job_id for row in look.rows}) > 1
    table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
    if several:
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
    top = _SPARK_ROOF * (look.step_seconds or 0.0)
    for row in look.rows[:room]:
        cells = _cells(row, width, top)
        table.add_row(*([Text(row.job_id), *cells] if several else cells))
    return table


def _cells(row: RankRow, width: int, top: float) -> list[Text]:
    late = (row.lag_seconds or 0.0) > _LATE_RATIO * (row.step_seconds or float("inf"))
    cells = [
        Text(str(row.rank), style="bold red" if late else ""),
        Text(printable(row.node)),
        Text(row.state, style=_COLOURS.get(row.state, "yellow")),
        Text(_told(row.step, "{:,}")),
    ]
    if width >= _NARROW:
        cells.append(Text(row.phase or "-"))
    cells += [
        Text(_milliseconds(row.lag_seconds), style="bold red" if late else ""),
        Text(_milliseconds(row.wait_seconds)),
    ]
    if width >= _NARROW:
        cells.append(Text(_milliseconds(row.step_seconds)))
    if width >= _WIDE:
        cells += [
            Text(_told(row.tokens_per_second, "{:,.0f}")),
            Text(_told(row.loss, "{:.4g}")),
            Text(spark(row.step_times, top), style="cyan"),
        ]
    return cells


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else milliseconds(seconds)


def _told(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def spark(values: tuple[float, ...], top: float) -> str:
    """Bars from nothing to ``top``, a value a letter."""
    if top <= _SMALL:
        return ""
    last = len(_BARS) - 1
    return "".join(_BARS[min(last, max(0, int(value / top * last + 0.5)))] for value in values)


def _foot(look: Look, room: int) -> Text:
    text = Text(style="dim")
    left = len(look.rows) - room
    if left > 0:
        text.append(f"{plural(left, 'rank')} with less lag not shown. ")
    text.append("lag: own work beyond the job's median; waits: synchronisation; both a step")
    for note in look.notes:
        text.append(f"\n{printable(note)}")
    return text
