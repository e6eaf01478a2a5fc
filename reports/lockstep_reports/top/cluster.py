"""All jobs of a Prometheus, worst first, by the series that its rules record."""

import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from lockstep_catalogue import recorded, training
from lockstep_catalogue.foreign import ALERT_NAME, ALERT_SEVERITY, ALERT_STATE, ALERTS
from lockstep_catalogue.labels import CLUSTER, JOB_ID, NODE, PHASE, PP, PROJECT, QUEUE, RANK
from lockstep_catalogue.ledger import SLO
from lockstep_catalogue.metric import Label, Series
from lockstep_catalogue.promql import by, eq, has, names, select
from lockstep_prometheus.client import Prometheus
from lockstep_prometheus.client import Series as Answer
from lockstep_records.text.printable import printable
from lockstep_reports.wording import clock, duration, percent, plural

_JOB = (CLUSTER, JOB_ID)
_NAME = "__name__"


def _any_of(*series: Series) -> str:
    """A selector of several series at once."""
    return f'{{{_NAME}=~"{"|".join(each.name for each in series)}"}}'


_JOB_SERIES = (
    recorded.JOB_GPUS,
    recorded.JOB_LOSS,
    recorded.JOB_STEP,
    recorded.PROGRESS_AGE,
    recorded.STANDING,
    recorded.PRODUCTIVE,
)
# ``or`` compares labels without the name; the series after it have one more.
_NUMBERS = f"{_any_of(*_JOB_SERIES)} or {select(recorded.SLICE_RATIO, eq(SLO, 'throughput'))}"
_HELD_UP = {
    recorded.GONE.name: "{} is gone",
    training.HANG_FIRST.name: "{} stopped first, {}",
    training.HANG_MISSING.name: "the others wait for {}, {}",
}
_PARTS = _any_of(recorded.LATE_PART, recorded.GONE, training.HANG_FIRST, training.HANG_MISSING)
_FIRING = select(ALERTS, eq(ALERT_STATE, "firing"), eq(ALERT_SEVERITY, "critical"), has(JOB_ID))
_REASONS = (
    f"topk by ({names(*_JOB)}, {_NAME}) (1, {_PARTS}) or {by('group', _FIRING, *_JOB, ALERT_NAME)}"
)
_LOST_RATIO = 0.05  # of a job's GPUs, from which on its row is marked
_NUM_OTHER_LINES = 4
_WIDTHS = {
    "cluster": 140, "queue": 130, "productive": 120, "pace": 108, "step": 98, "owner": 88,
    "silent": 78,
}  # fmt: skip
"""Widths of a terminal from which on a column is shown, the least important first."""
_TEXTS = {"cluster", "job", "owner", "queue", "verdict"}
_MAX_WIDTH = 24

_Key = tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRow:
    """One job now; None where nothing is recorded.

    Attributes:
        gpus, lost_gpus: of the job, and those whose time is lost now.
        verdict: why, in a few words; empty of a job that does well.
        pace_ratio: tokens a second over those of its best hour of the last day.
        productive_ratio: share of its ranks' time that was productive lately.
    """

    cluster: str
    job_id: str
    owner: str
    queue: str
    gpus: float
    lost_gpus: float
    verdict: str
    step: float | None
    quiet_seconds: float | None
    pace_ratio: float | None
    productive_ratio: float | None
    pages: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSnapshot:
    """All jobs at one moment, worst first."""

    title: str
    wall_seconds: float
    rows: tuple[JobRow, ...]
    notes: tuple[str, ...] = ()

    def view(self, max_rows: int | None) -> "ClusterView":
        """The table, of so many jobs at most; None for as many as the terminal is high."""
        return ClusterView(self, max_rows)


class ClusterSource:
    """The jobs that the recording rules of a Prometheus know of, by two queries for all."""

    def __init__(self, url: str, now: Callable[[], float] = time.time) -> None:
        self._server, self._now = Prometheus(url), now

    def poll(self) -> ClusterSnapshot:
        """The jobs now; ValueError where the server does not answer, or its rules record no job."""
        now = self._now()
        numbers = self._ask(_NUMBERS, now)
        jobs = numbers[recorded.JOB_GPUS.name]
        if not jobs:
            raise ValueError(
                f"{self._server.address} records no job now; load the rules of"
                " `lockstep alerts generate` there, or wait until a job runs"
            )
        lost, step, quiet, standing, productive, pace = (
            {_key(each.labels): each.points[-1][1] for each in numbers[name]}
            for name in (each.name for each in (*_JOB_SERIES[1:], recorded.SLICE_RATIO))
        )
        reasons = self._ask(_REASONS, now)
        verdicts, pages = _verdicts(reasons, standing, quiet), _pages(reasons[""])
        rows = [
            JobRow(
                cluster=key[0],
                job_id=key[1],
                owner=series.labels.get(PROJECT.name, ""),
                queue=series.labels.get(QUEUE.name, ""),
                gpus=series.points[-1][1],
                lost_gpus=lost.get(key, 0.0),
                verdict=verdicts.get(key, ""),
                step=step.get(key),
                quiet_seconds=quiet.get(key),
                pace_ratio=pace.get(key),
                productive_ratio=productive.get(key),
                pages=pages.get(key, ()),
            )
            for series in jobs
            for key in (_key(series.labels),)
        ]
        rows.sort(key=lambda row: (-row.lost_gpus, -len(row.pages), not row.verdict, row.job_id))
        return ClusterSnapshot(title=self._server.address, wall_seconds=now, rows=tuple(rows))

    def close(self) -> None:
        """Closes the connection."""
        self._server.close()

    def _ask(self, query: str, now: float) -> dict[str, list[Answer]]:
        """The series of an answer by their names; empty of what has none."""
        found: dict[str, list[Answer]] = defaultdict(list)
        for each in self._server.instant(query, now):
            found[each.labels.get(_NAME, "")].append(each)
        return found


def _verdicts(
    reasons: dict[str, list[Answer]], standing: dict[_Key, float], quiet: dict[_Key, float]
) -> dict[_Key, str]:
    found = {key: f"no progress in {duration(seconds)}" for key, seconds in standing.items()}
    for each in reasons[recorded.LATE_PART.name]:
        phase = each.labels.get(PHASE.name) or "its work"
        found.setdefault(_key(each.labels), f"{_rank_or_node(each.labels)} late in {phase}")
    for name, words in _HELD_UP.items():
        for each in reasons[name]:
            state = f"in {each.labels.get(training.HANG_PHASE.name, '')}"
            age = duration(quiet.get(_key(each.labels)))
            part = words.format(_rank_or_node(each.labels), state)
            found[_key(each.labels)] = f"{part}, for {age}"
    return found


def _pages(firing: list[Answer]) -> dict[_Key, tuple[str, ...]]:
    found: dict[_Key, tuple[str, ...]] = {}
    for key, name in sorted((_key(each.labels), each.labels[ALERT_NAME.name]) for each in firing):
        found[key] = (*found.get(key, ()), name)
    return found


def _key(labels: dict[str, str]) -> _Key:
    return labels.get(CLUSTER.name, ""), labels.get(JOB_ID.name, "")


def _rank_or_node(labels: dict[str, str]) -> str:
    def has_label(label: Label) -> bool:
        return bool(labels.get(label.name))

    on = f" on {labels[NODE.name]}" if has_label(NODE) else ""
    if has_label(RANK):
        return f"rank {labels[RANK.name]}{on}"
    return f"stage {labels[PP.name]}" if has_label(PP) and not on else on.removeprefix(" on ")


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The jobs for rich; it asks the console for its size each time it is drawn."""

    snapshot: ClusterSnapshot
    max_rows: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = self.snapshot.rows
        num_rows = self.max_rows or max(1, (options.height or console.height) - _NUM_OTHER_LINES)
        lost, gpus = sum(row.lost_gpus for row in rows), sum(row.gpus for row in rows)
        text = Text(printable(self.snapshot.title), style="bold", no_wrap=True, overflow="ellipsis")
        text.append(f"  {clock(self.snapshot.wall_seconds)} UTC", style="not bold")
        text.append(f"  {plural(len(rows), 'job')}, {gpus:,.0f} GPUs", style="not bold")
        text.append(f"  {lost:,.1f} lost now", style="bold red" if lost else "not bold")
        yield text
        yield self._table(rows[:num_rows], options.max_width)
        hidden = len(rows) - num_rows
        more = f"{plural(hidden, 'job')} that lose less not shown. " if hidden > 0 else ""
        notes = "".join(f"\n{printable(note)}" for note in self.snapshot.notes)
        yield Text(f"{more}lost: GPUs whose time is lost now; pace: of its best hour{notes}", "dim")

    def _table(self, rows: tuple[JobRow, ...], width: int) -> Table:
        columns: dict[str, Callable[[JobRow], str]] = {
            "cluster": lambda row: row.cluster,
            "job": lambda row: row.job_id,
            "owner": lambda row: row.owner,
            "queue": lambda row: row.queue,
            "GPUs": lambda row: f"{row.gpus:,.0f}",
            "lost": lambda row: f"{row.lost_gpus:,.1f}",
            "step": lambda row: _text_or_dash(row.step, "{:,.0f}".format),
            "silent": lambda row: _text_or_dash(row.quiet_seconds, duration),
            "pace": lambda row: _text_or_dash(row.pace_ratio, percent),
            "productive": lambda row: _text_or_dash(row.productive_ratio, percent),
            "verdict": lambda row: ", ".join((*row.pages, row.verdict)).strip(", ") or "does well",
        }
        table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
        for name, cell in columns.items():
            if width < _WIDTHS.get(name, 0):
                continue
            texts = [printable(cell(row)) for row in rows]
            longest = max(map(len, (name, *texts)))
            table.add_column(
                name,
                justify="left" if name in _TEXTS else "right",
                no_wrap=True,
                # What is left after the others is the verdict's.
                min_width=0 if name == "verdict" else min(longest, _MAX_WIDTH),
                max_width=None if name == "verdict" else _MAX_WIDTH,
            )
        cells = [columns[str(column.header)] for column in table.columns]
        for row in rows:
            style = "bold red" if row.lost_gpus > _LOST_RATIO * row.gpus else ""
            table.add_row(*(Text(printable(cell(row)), style=style) for cell in cells))
        return table


def _text_or_dash(value: float | None, text: Callable[[float], str]) -> str:
    return "-" if value is None or math.isnan(value) else text(value)
