"""Runs every query of a board: several at a time, and one that fails leaves the others alone."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from lockstep_dashboards.panel import Annotation, Board, Panel, Query
from lockstep_dashboards.scope import Scope, run_over, run_query
from lockstep_prometheus.client import Prometheus, QueryError, Series

_SIMULTANEOUS = 4
MAX_SERIES = 200
_REFERENCE = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """One series of a panel: a value for each point of the range, one alone of an instant query."""

    number: int
    name: str
    labels: dict[str, str]
    values: tuple[float | None, ...]

    @property
    def last(self) -> float | None:
        """The last value of the range, or None when there is none."""
        return next((value for value in reversed(self.values) if value is not None), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class PanelAnswer:
    """What the queries of a panel yield, or Prometheus' reason, with series that are not drawn."""

    panel: Panel
    scope: Scope
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

    board: Board
    scope: Scope
    panels: tuple[PanelAnswer, ...]
    events: tuple[Event, ...]

    @property
    def queried(self) -> list[PanelAnswer]:
        """The panels that ask Prometheus."""
        return [answer for answer in self.panels if answer.queries]

    @property
    def num_queries(self) -> int:
        """Number of queries of panels and annotations."""
        return sum(len(x.queries) for x in self.panels) + len(self.board.annotations)


Progress = Callable[[Iterable[PanelAnswer], int], Iterable[PanelAnswer]]
"""Follows answers as they arrive; it gets their number too."""


def _silent(answers: Iterable[PanelAnswer], count: int) -> Iterable[PanelAnswer]:
    del count
    return answers


def ask(
    board: Board,
    panels: Sequence[Panel],
    scope: Scope,
    source: Prometheus,
    progress: Progress = _silent,
) -> BoardAnswer:
    """The answers to all queries of some panels, and the board's annotations; or raises."""
    with ThreadPoolExecutor(_SIMULTANEOUS) as pool:
        futures = [pool.submit(_ask_panel, panel, scope, source) for panel in panels]
        annotated = [pool.submit(_events, x, scope, source) for x in board.annotations]
        try:
            answers = tuple(progress((future.result() for future in futures), len(futures)))
            events = [event for future in annotated for event in future.result()]
        finally:
            # One sentence is enough: the queries that wait would meet the same error.
            pool.shutdown(wait=False, cancel_futures=True)
    events.sort(key=lambda event: event.begin)
    return BoardAnswer(board=board, scope=scope, panels=answers, events=tuple(events))


def _ask_panel(panel: Panel, scope: Scope, source: Prometheus) -> PanelAnswer:
    if panel.max_points:
        scope = replace(scope, max_points=panel.max_points)
    frames: list[Frame] = []
    problems = []
    for number, query in enumerate(panel.queries):
        try:
            answers = run_query(panel, query, scope, source)
        except QueryError as error:
            problems.append(str(error))
            continue
        for name, answer in zip(_legends(query, answers), answers, strict=True):
            values = _values(answer, None if panel.is_instant else scope)
            frames.append(Frame(number=number, name=name, labels=answer.labels, values=values))
    return PanelAnswer(
        panel=panel,
        scope=scope,
        frames=tuple(frames[:MAX_SERIES]),
        queries=tuple(scope.fill(query.expression) for query in panel.queries),
        problem="; ".join(problems),
        num_omitted=max(0, len(frames) - MAX_SERIES),
    )


def _values(series: Series, scope: Scope | None) -> tuple[float | None, ...]:
    """The value at each point of a range, or the last one alone; what cannot be drawn is None."""
    values: list[float | None] = [None] * (scope.num_points if scope else 1)
    for seconds, value in series.points:
        index = round((seconds - scope.start) / scope.step_seconds) if scope else 0
        if 0 <= index < len(values):
            values[index] = value if math.isfinite(value) else None
    return tuple(values)


def _legends(query: Query, answers: Sequence[Series]) -> list[str]:
    if query.legend:
        return [legend(query.legend, answer.labels) for answer in answers]
    common = set.intersection(*(set(x.labels.items()) for x in answers)) if answers else set()
    return [
        ", ".join(pair[1] for pair in sorted(x.labels.items()) if pair not in common)
        for x in answers
    ]


def legend(template: str, labels: dict[str, str]) -> str:
    """A legend in which ``{{label}}`` is replaced by the label's value."""
    return _REFERENCE.sub(lambda match: labels.get(match[1], ""), template)


def _events(annotation: Annotation, scope: Scope, source: Prometheus) -> list[Event]:
    """One event for each time without a gap in which a series of an annotation has a value."""
    step = scope.step_seconds
    try:
        answers = run_over(annotation.expression, scope, source)
    except QueryError:
        return []
    return [
        Event(
            name=annotation.title,
            heading=legend(annotation.heading, answer.labels),
            color=annotation.color,
            begin=scope.start + first * step,
            end=scope.start + last * step,
        )
        for answer in answers[:MAX_SERIES]
        for first, last in stretches([bool(value) for value in _values(answer, scope)])
    ]


def stretches(values: Sequence[bool]) -> list[tuple[int, int]]:
    """First and last index of each stretch of points at which something holds."""
    found: list[tuple[int, int]] = []
    for index, holds in enumerate(values):
        if holds and found and found[-1][1] == index - 1:
            found[-1] = (found[-1][0], index)
        elif holds:
            found.append((index, index))
    return found
