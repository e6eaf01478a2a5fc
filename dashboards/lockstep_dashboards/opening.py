"""Opens a board as Grafana does: a variable of one value takes the first that it offers."""

import re
from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches

from lockstep_catalogue.labels import CLUSTER, JOB_ID
from lockstep_dashboards.panel import Board, Panel, Query, Variable
from lockstep_dashboards.scope import Scope
from lockstep_prometheus.client import Prometheus, Series

_MOST_NAMED = 8
_MOST_OFFERED = 500


def open_board(board: Board, scope: Scope, server: Prometheus, *, strict: bool = True) -> Scope:
    """The scope with what each variable of the board offers, and a value where it needs one.

    ``strict`` refuses a value that nothing has, instead of taking it all the same.

    Raises:
        ValueError: a value that was chosen is not offered, or none is.
    """
    names = {variable.name for variable in board.variables}
    chosen = {name: values for name, values in scope.chosen.items() if name in names and values}
    offered: dict[str, tuple[str, ...]] = {}
    for variable in board.variables:
        opened = replace(scope, chosen=chosen, offered=offered)
        values = tuple(offered_values(variable, opened, server)[:_MOST_OFFERED])
        wishes = chosen.get(variable.name, ())
        for value in wishes if strict else ():
            if value not in values:
                raise ValueError(_unknown(variable, value, values, scope))
        if not variable.several and not wishes:
            if not values and strict:
                raise ValueError(
                    f"no series has a {variable.title.lower()} {scope.text}; choose another window"
                )
            chosen[variable.name] = values[:1] or ("",)
        offered = {**offered, variable.name: values}
    return replace(scope, chosen=chosen, offered=offered)


def check_names(board: Board, wishes: Iterable[str]) -> None:
    """Refuses the names of variables that the board lacks.

    Raises:
        ValueError: it lacks one; the text names those that it has.
    """
    names = [variable.name for variable in board.variables]
    for name in wishes:
        if name not in names:
            raise ValueError(
                f"the board {board.uid} has no variable {name!r}; it has {', '.join(names)}"
            )


def offered_values(variable: Variable, scope: Scope, server: Prometheus) -> list[str]:
    """The values that a variable offers within the range, ascending, node-2 before node-10."""
    selector = scope.fill(variable.source)
    values = server.label_values(variable.label.name, selector, scope.start, scope.end)
    return sorted(values, key=natural)


def run_query(panel: Panel, query: Query, scope: Scope, server: Prometheus) -> list[Series]:
    """The series of a panel's query.

    Raises:
        PrometheusError: the server does not answer, or is not a Prometheus.
        QueryError: Prometheus refuses the query.
    """
    if panel.is_instant:
        return server.instant(scope.fill(query.expression), scope.end)
    if panel.max_points:
        scope = replace(scope, max_points=panel.max_points)
    return run_over(query.expression, scope, server)


def run_over(expression: str, scope: Scope, server: Prometheus) -> list[Series]:
    """The series of an expression over the range; raises as ``run_query``."""
    return server.over(scope.fill(expression), scope.start, scope.end, scope.step_seconds)


def natural(text: str) -> list[tuple[int, str]]:
    """A key by which numbers within a text sort as numbers: rank 2 before rank 10."""
    parts = re.split(r"([0-9]+)", text)
    return [(int(part) if part.isdecimal() else -1, part) for part in parts]


def _unknown(variable: Variable, value: str, offered: tuple[str, ...], scope: Scope) -> str:
    close = get_close_matches(value, offered, n=1)
    values = ", ".join(dict.fromkeys([*close, *offered[:_MOST_NAMED]])) or "none"
    more = ", ..." if len(offered) > _MOST_NAMED else ""
    return f"no series has the {variable.name} {value!r} {scope.text}; there are: {values}{more}"


def read_wishes(
    variables: Iterable[str], job: str | None, clusters: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """The chosen values by the name of the variable.

    Raises:
        ValueError: a text must be NAME=VALUE.
    """
    wishes: dict[str, tuple[str, ...]] = {}
    for text in variables:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or not value:
            raise ValueError(f"--var {text!r} must be NAME=VALUE, such as node=node-12")
        wishes[name] = (*wishes.get(name, ()), value)
    if job is not None:
        wishes[JOB_ID.name] = (job,)
    if clusters:
        wishes[CLUSTER.name] = clusters
    return wishes
