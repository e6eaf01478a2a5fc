"""Runs every query of a board against a Prometheus, as Grafana would."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from lockstep_dashboards.opening import offered_values, run_over, run_query
from lockstep_dashboards.panel import MAX_SERIES, Annotation, Board, Panel, Variable, View
from lockstep_dashboards.scope import Scope
from lockstep_prometheus.client import Prometheus, QueryError, Series

EMPTY = "empty"
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result of one panel, annotation or variable.

    Attributes:
        queries: PromQL with every variable replaced.
        num_series: series with a value within the range; of a table, rows.
        seconds: of the slowest query.
        error: what is wrong whatever the data; empty where nothing is.
        empty: numbers of the queries that have no series.
        excuse: why the panel may have no series.
    """

    board: str
    panel: str
    queries: tuple[str, ...]
    num_series: int
    seconds: float = 0.0
    error: str = ""
    empty: frozenset[int] = frozenset()
    excuse: str = ""

    @property
    def problem(self) -> str:
        """What has to be mended; empty where nothing has."""
        return self.error or (EMPTY if self.empty and not self.excuse else "")

    @property
    def remark(self) -> str:
        """Why the panel may have no series, where it has none."""
        return self.excuse if self.empty and not self.error else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    num_series: int
    seconds: float
    problem: str


def check_board(
    board: Board, scope: Scope, server: Prometheus, *, is_full: bool = False
) -> list[Finding]:
    """One finding a panel, annotation and variable.

    Where ``is_full``, the data set has something for every panel, and none may be empty.

    Raises:
        PrometheusError: the server does not answer, or is not a Prometheus.
    """
    panels = [
        _check_panel(board, panel, scope, server, is_full=is_full)
        for panel in board.panels
        if panel.queries
    ]
    annotations = [
        _check_annotation(board, annotation, scope, server, is_full=is_full)
        for annotation in board.annotations
    ]
    variables = [_check_variable(board, variable, scope, server) for variable in board.variables]
    return [*panels, *annotations, *variables]


def _check_panel(
    board: Board, panel: Panel, scope: Scope, server: Prometheus, *, is_full: bool
) -> Finding:
    answers = [
        _count(partial(run_query, panel, query, scope, server), _num_with_value)
        for query in panel.queries
    ]
    errors = [answer.problem for answer in answers if answer.problem]
    counts = [answer.num_series for answer in answers]
    # The columns of a table share its rows.
    total = max(counts) if panel.view is View.TABLE else sum(counts)
    if total > MAX_SERIES:
        errors.append(f"more than {MAX_SERIES} series")
    return Finding(
        board=board.title,
        panel=panel.title,
        queries=tuple(scope.fill(query.expression) for query in panel.queries),
        num_series=total,
        seconds=max(answer.seconds for answer in answers),
        error="; ".join(errors),
        empty=frozenset(number for number, count in enumerate(counts) if not count),
        excuse="" if is_full else panel.may_be_empty,
    )


def _check_annotation(
    board: Board, annotation: Annotation, scope: Scope, server: Prometheus, *, is_full: bool
) -> Finding:
    answer = _count(partial(run_over, annotation.expression, scope, server), _num_with_value)
    return Finding(
        board=board.title,
        panel=f"annotation {annotation.title}",
        queries=(scope.fill(annotation.expression),),
        num_series=answer.num_series,
        seconds=answer.seconds,
        error=answer.problem,
        empty=frozenset() if answer.num_series else frozenset({0}),
        excuse="" if is_full else "nothing to annotate",
    )


def _check_variable(board: Board, variable: Variable, scope: Scope, server: Prometheus) -> Finding:
    answer = _count(partial(offered_values, variable, scope, server), len)
    return Finding(
        board=board.title,
        panel=f"variable {variable.name}",
        queries=(scope.fill(variable.source),),
        num_series=answer.num_series,
        seconds=answer.seconds,
        error=answer.problem or ("" if answer.num_series else "offers no value"),
    )


def _num_with_value(series: list[Series]) -> int:
    return sum(any(not math.isnan(value) for _, value in each.points) for each in series)


def _count(run: Callable[[], list[T]], count: Callable[[list[T]], int]) -> _Answer:
    """What a query answers, how long it takes, and Prometheus' error; empty where there is none."""
    started, number, problem = time.monotonic(), 0, ""
    try:
        number = count(run())
    except QueryError as error:
        problem = str(error)
    return _Answer(num_series=number, seconds=time.monotonic() - started, problem=problem)
