"""Draws a snapshot as a table that fits the terminal."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from lockstep_catalogue.limits import MAX_OTHER_RATIO, MIN_WAIT_RATIO
from lockstep_catalogue.vocabulary import ENDED_PHASES, PAUSE_PHASES
from lockstep_outcomes.progress import hangs
from lockstep_records.text.printable import printable
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Matrix
from lockstep_reports.wording import clock, duration, milliseconds, percent, plural


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRow:
    """One rank at the moment of the snapshot; None where unknown.

    Attributes:
        state: training, another phase outside of steps, stopped (by a signal), stalled, gone, done
            or failed.
        lag_seconds: own work per step beyond the median of its job.
        wait_seconds: synchronisation per step, from own arrival to completion.
        step_times: durations of the newest steps, oldest first, in seconds.
        clock: whose clock these times are by; lags are those among ranks with the same one.
    """

    job_id: str
    rank: int
    node: str
    state: str
    phase: str | None
    step: int | None
    lag_seconds: float | None
    wait_seconds: float | None
    step_seconds: float | None
    tokens_per_second: float | None
    loss: float | None
    quiet_seconds: float | None
    other_seconds: float | None = None
    step_times: tuple[float, ...] = ()
    clock: str = "host"


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """All ranks at one moment, worst first; the state is that of the job if one is shown."""

    title: str
    wall_seconds: float
    rows: tuple[RankRow, ...]
    notes: tuple[str, ...] = ()
    state: str = ""

    @property
    def clocks(self) -> tuple[str, ...]:
        """Clocks that the times of ranks are by."""
        return tuple(sorted({row.clock for row in self.rows}))

    @property
    def tokens_per_second(self) -> float | None:
        """Sum over the ranks; None where no rank counts tokens."""
        rates = [row.tokens_per_second for row in self.rows if row.tokens_per_second is not None]
        return sum(rates) if rates else None

    @property
    def step_seconds(self) -> float | None:
        """Median over the ranks; None where no duration is known."""
        seconds = np.array([row.step_seconds for row in self.rows if row.step_seconds is not None])
        return nan_stats.median_number(seconds)

    def view(self, max_rows: int | None) -> "SnapshotView":
        """The table, of so many ranks at most; None for as many as the terminal is high."""
        return SnapshotView(self, max_rows)


def worst_first(rows: Sequence[RankRow]) -> tuple[RankRow, ...]:
    """Failed, gone and stalled ranks that do not wait for others, then by lag."""
    priorities = {"failed": 0, "gone": 0, "stopped": 0, "stalled": 1}

    def order(row: RankRow) -> tuple[int, bool, float, str, int]:
        priority = priorities.get(row.state, 2)
        lag = row.lag_seconds if row.lag_seconds is not None else -np.inf
        # In a stalled job the ranks inside a collective wait for the one outside: it comes first.
        return priority, row.phase == "sync", -lag, row.job_id, row.rank

    return tuple(sorted(rows, key=order))


def lags(own_work: Matrix) -> Matrix:
    """Median over the steps of each rank's own work beyond the median of all ranks [ranks].

    Own work is seconds, [ranks, steps]; NaN where unknown.
    """
    # By own work and not by step time, which is the same on all ranks of a synchronous job.
    return nan_stats.median(own_work - nan_stats.median(own_work, axis=0), axis=1)


STILL = frozenset({"failed", "gone", "stopped", "stalled", "done"})
"""States in which a rank computes nothing: it has no rate."""


def state_of(
    phase: str,
    quiet_seconds: float,
    step_seconds: float | None,
    timeouts: hangs.HangTimeouts = hangs.HangTimeouts(),  # noqa: B008  # it is frozen
) -> str:
    """State of a rank by its last phase, its silence, and the median of its steps if known."""
    if phase in ENDED_PHASES:
        return phase
    is_pause = phase in PAUSE_PHASES
    limit_seconds = hangs.hang_limit_seconds(
        step_seconds,
        timeouts.step_seconds or hangs.HANG_TIMEOUT_SECONDS,
        timeouts.pause_seconds or hangs.PAUSE_TIMEOUT_SECONDS,
        is_pause=is_pause,
    )
    if quiet_seconds > limit_seconds:
        return "stalled"
    return phase if is_pause else "training"


def why_unobserved(rows: Sequence[RankRow]) -> tuple[str, ...]:
    """A sentence for each job of which a slow rank would not show, by its reason."""
    by_job: dict[str, list[RankRow]] = {}
    for row in rows:
        by_job.setdefault(row.job_id, []).append(row)
    notes = [_why_unobserved(job, ranks) for job, ranks in by_job.items()]
    return tuple(note for note in notes if note is not None)


def _why_unobserved(job_id: str, rows: Sequence[RankRow]) -> str | None:
    waits = _ratios((row.wait_seconds, row.step_seconds) for row in rows)
    if len(waits) > 1 and max(waits) < MIN_WAIT_RATIO:
        return f"Who is slow is unknown in {job_id}: no rank waits, so waits are not recorded."
    other = _ratios((row.other_seconds, row.step_seconds) for row in rows)
    if len(other) > 1 and np.median(other) > MAX_OTHER_RATIO:
        return (
            f"Who is slow is unknown in {job_id}: {percent(float(np.median(other)))} of the step "
            "is in no marked phase."
        )
    return None


def _ratios(pairs: Iterable[tuple[float | None, float | None]]) -> list[float]:
    return [part / step for part, step in pairs if part is not None and step]


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
    """A snapshot for rich; it asks the console for its size each time it is drawn."""

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
