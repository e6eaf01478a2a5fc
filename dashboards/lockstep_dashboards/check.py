"""Runs every query of a board against a Prometheus, as Grafana would."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx

from lockstep_dashboards.panel import MAX_SERIES, Annotation, Board, Panel, Variable
from lockstep_dashboards.prometheus import (
    QueryError,
    offered_values,
    run_query,
    run_range,
    samples_of,
)
from lockstep_dashboards.scope import Scope


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result of one panel, annotation or variable.

    Attributes:
        queries: PromQL with every variable replaced.
        num_series: series with a value within the range.
        seconds: of the slowest query.
        problem: empty where there is none.
        remark: why having no series is no problem.
    """

    board: str
    panel: str
    queries: tuple[str, ...]
    num_series: int
    seconds: float = 0.0
    problem: str = ""
    remark: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    num_series: int
    seconds: float
    problem: str


def check_board(
    board: Board, scope: Scope, client: httpx.Client, *, is_full: bool = False
) -> list[Finding]:
    """One finding a panel, annotation and variable.

    Where ``is_full``, the data set has something for every panel, and none may be empty.

    Raises:
        CheckError: the server does not answer, or is no Prometheus.
    """
    panels = [
        _check_panel(board, panel, scope, client, is_full=is_full)
        for panel in board.panels
        if panel.queries
    ]
    annotations = [
        _check_annotation(board, annotation, scope, client) for annotation in board.annotations
    ]
    variables = [_check_variable(board, variable, scope, client) for variable in board.variables]
    return [*panels, *annotations, *variables]


def _check_panel(
    board: Board, panel: Panel, scope: Scope, client: httpx.Client, *, is_full: bool
) -> Finding:
    answers = [
        _count(partial(run_query, panel, query, scope, client), _num_with_value)
        for query in panel.queries
    ]
    problems = [answer.problem for answer in answers if answer.problem]
    empty = any(not answer.num_series for answer in answers)
    total = sum(answer.num_series for answer in answers)
    if not problems and empty and (is_full or not panel.may_be_empty):
        problems.append("empty")
    if total > MAX_SERIES:
        problems.append(f"more than {MAX_SERIES} series")
    return Finding(
        board=board.title,
        panel=panel.title,
        queries=tuple(scope.fill(query.expression) for query in panel.queries),
        num_series=total,
        seconds=max(answer.seconds for answer in answers),
        problem="; ".join(problems),
        remark=panel.may_be_empty if empty and not problems else "",
    )


def _check_annotation(
    board: Board, annotation: Annotation, scope: Scope, client: httpx.Client
) -> Finding:
    answer = _count(partial(run_range, annotation.expression, scope, client), _num_with_value)
    return Finding(
        board=board.title,
        panel=f"annotation {annotation.title}",
        queries=(scope.fill(annotation.expression),),
        num_series=answer.num_series,
        seconds=answer.seconds,
        problem=answer.problem,
        remark="" if answer.num_series else "nothing to annotate",
    )


def _check_variable(
    board: Board, variable: Variable, scope: Scope, client: httpx.Client
) -> Finding:
    answer = _count(partial(offered_values, variable, scope, client), len)
    return Finding(
        board=board.title,
        panel=f"variable {variable.name}",
        queries=(scope.fill(variable.source),),
        num_series=answer.num_series,
        seconds=answer.seconds,
        problem=answer.problem or ("" if answer.num_series else "offers no value"),
    )


def _num_with_value(series: list[Any]) -> int:
    return sum(any(not math.isnan(value) for _, value in samples_of(each)) for each in series)


def _count(run: Callable[[], list[Any]], count: Callable[[list[Any]], int]) -> _Answer:
    """What a query answers, how long it takes, and Prometheus' error; empty where there is none."""
    started, number, problem = time.monotonic(), 0, ""
    try:
        number = count(run())
    except QueryError as error:
        problem = str(error)
    return _Answer(num_series=number, seconds=time.monotonic() - started, problem=problem)
