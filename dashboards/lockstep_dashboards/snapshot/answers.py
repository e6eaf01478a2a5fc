"""Runs every query of a board: several at a time, and one that fails leaves the others alone."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lockstep_dashboards.snapshot.board_file import GrafanaBoard, GrafanaPanel, Target
from lockstep_dashboards.snapshot.variables import Choice, fill
from lockstep_dashboards.snapshot.window import Window
from lockstep_records.shared.prometheus import Prometheus, QueryError, Series

_SIMULTANEOUS = 4
MAX_SERIES = 200
_REFERENCE = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """One series of a panel.

    Attributes:
        name: as in the legend.
        values: one for each point of the window; a single one of an instant query.
    """

    target: Target
    name: str
    labels: dict[str, str]
    values: tuple[float | None, ...]

    @property
    def last(self) -> float | None:
        """The last value of the window, or None when there is none."""
        return next((value for value in reversed(self.values) if value is not None), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class PanelAnswer:
    """What the queries of a panel yield.

    Attributes:
        queries: PromQL with every variable replaced.
        problem: Prometheus' reason where it refuses a query; empty where there is none.
        num_omitted: series beyond the bound, which are not drawn.
    """

    panel: GrafanaPanel
    frames: tuple[Frame, ...]
    queries: tuple[str, ...]
    problem: str = ""
    num_omitted: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether no series has a value."""
        return all(frame.last is None for frame in self.frames)


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """An annotation: from when to when an expression has a value, and what that means."""

    name: str
    heading: str
    color: str
    begin: float
    end: float


@dataclass(frozen=True, kw_only=True, slots=True)
class BoardAnswer:
    """Everything that a page of a board is drawn from."""

    board: GrafanaBoard
    window: Window
    choices: tuple[Choice, ...]
    panels: tuple[PanelAnswer, ...]
    events: tuple[Event, ...]
    num_queries: int


Progress = Callable[[Iterable[PanelAnswer], int], Iterable[PanelAnswer]]
"""Follows answers as they arrive; it gets their number too."""


def _silent(answers: Iterable[PanelAnswer], count: int) -> Iterable[PanelAnswer]:
    del count
    return answers


def ask(
    board: GrafanaBoard,
    panels: Sequence[GrafanaPanel],
    choices: tuple[Choice, ...],
    *,
    source: Prometheus,
    window: Window,
    progress: Progress = _silent,
) -> BoardAnswer:
    """The answers to all queries of some panels of a board, and its annotations.

    Args:
        board: the dashboard.
        panels: those of its panels that are drawn.
        choices: the values of its variables.
        source: the Prometheus.
        window: from when to when.
        progress: follows the answers as they arrive.

    Raises:
        PrometheusError: the server does not answer, or is not a Prometheus.
    """
    annotations = [x for x in board.annotations if x.get("expr") and x.get("enable", True)]
    with ThreadPoolExecutor(_SIMULTANEOUS) as pool:
        futures = [pool.submit(_ask_panel, panel, choices, source, window) for panel in panels]
        annotated = [pool.submit(_events, x, choices, source, window) for x in annotations]
        try:
            answers = tuple(progress((future.result() for future in futures), len(futures)))
            events = [event for future in annotated for event in future.result()]
        finally:
            # One sentence is enough: the queries that wait would meet the same error.
            pool.shutdown(wait=False, cancel_futures=True)
    events.sort(key=lambda event: event.begin)
    return BoardAnswer(
        board=board, window=window, choices=choices, panels=answers, events=tuple(events),
        num_queries=sum(len(answer.queries) for answer in answers) + len(annotations),
    )  # fmt: skip


def _ask_panel(
    panel: GrafanaPanel, choices: tuple[Choice, ...], source: Prometheus, window: Window
) -> PanelAnswer:
    frames: list[Frame] = []
    problems, queries = [], []
    for target in panel.targets:
        query = fill(target.expression, choices, window.built_in)
        queries.append(query)
        try:
            answers = (
                source.instant(query, window.end)
                if target.is_instant
                else _ask_over(query, source, window)
            )
        except QueryError as error:
            problems.append(str(error))
            continue
        names = _legends(target, answers)
        frames += [
            Frame(
                target=target,
                name=name,
                labels=answer.labels,
                values=_values(answer, None if target.is_instant else window),
            )
            for name, answer in zip(names, answers, strict=True)
        ]
    return PanelAnswer(
        panel=panel,
        frames=tuple(frames[:MAX_SERIES]),
        queries=tuple(queries),
        problem="; ".join(problems),
        num_omitted=max(0, len(frames) - MAX_SERIES),
    )


def _ask_over(query: str, source: Prometheus, window: Window) -> list[Series]:
    return source.over(query, window.begin, window.end, window.step_seconds)


def _values(series: Series, window: Window | None) -> tuple[float | None, ...]:
    """The value at each point of a window, or the last one alone; what cannot be drawn is None."""
    values: list[float | None] = [None] * (window.num_points if window else 1)
    for seconds, value in series.points:
        index = window.index(seconds) if window else 0
        if 0 <= index < len(values):
            values[index] = value if math.isfinite(value) else None
    return tuple(values)


def _legends(target: Target, answers: Sequence[Series]) -> list[str]:
    """Names of the series: by the legend, or by the labels in which they differ."""
    if target.legend:
        return [legend(target.legend, answer.labels) for answer in answers]
    if len(answers) == 1:
        return [answers[0].labels.get("__name__") or target.ref_id]
    common = set.intersection(*(set(x.labels.items()) for x in answers)) if answers else set()
    return [
        ", ".join(pair[1] for pair in sorted(x.labels.items()) if pair not in common)
        for x in answers
    ]


def legend(template: str, labels: dict[str, str]) -> str:
    """A legend in which ``{{label}}`` is replaced by the label's value."""
    return _REFERENCE.sub(lambda match: labels.get(match[1], ""), template)


def _events(
    fields: dict[str, object], choices: tuple[Choice, ...], source: Prometheus, window: Window
) -> list[Event]:
    """One event for each time without a gap in which a series of an annotation has a value."""
    try:
        answers = _ask_over(fill(str(fields["expr"]), choices, window.built_in), source, window)
    except QueryError:
        return []
    events = []
    for answer in answers[:MAX_SERIES]:
        heading = legend(str(fields.get("titleFormat") or fields.get("name", "")), answer.labels)
        for first, last in _stretches(_values(answer, window)):
            events.append(
                Event(
                    name=str(fields.get("name", "")),
                    heading=heading,
                    color=str(fields.get("iconColor", "blue")),
                    begin=window.begin + first * window.step_seconds,
                    end=window.begin + last * window.step_seconds,
                )
            )
    return events


def _stretches(values: Sequence[float | None]) -> list[tuple[int, int]]:
    """First and last index of each stretch of values; a zero is none."""
    stretches: list[tuple[int, int]] = []
    for index, value in enumerate(values):
        if not value:
            continue
        if stretches and stretches[-1][1] == index - 1:
            stretches[-1] = (stretches[-1][0], index)
        else:
            stretches.append((index, index))
    return stretches
