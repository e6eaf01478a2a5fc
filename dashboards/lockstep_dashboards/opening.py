"""Opens a board as Grafana does: a variable of one value takes the first that it offers."""

from collections.abc import Iterable
from dataclasses import replace

from lockstep_catalogue.labels import CLUSTER, JOB_ID
from lockstep_dashboards.panel import Board, Variable
from lockstep_dashboards.scope import Scope
from lockstep_records.shared.prometheus import Prometheus

_MOST_NAMED = 10


def open_board(board: Board, scope: Scope, server: Prometheus) -> Scope:
    """The scope with a value for each variable of the board that needs one.

    Raises:
        ValueError: a value that was chosen is not offered, or none is.
    """
    chosen = {
        name: values
        for name, values in scope.chosen.items()
        if name in {variable.name for variable in board.variables}
    }
    for variable in board.variables:
        values = chosen.get(variable.name, ())
        if variable.several and not values:
            continue
        offered = offered_values(variable, replace(scope, chosen=chosen), server)
        for value in values:
            if value not in offered:
                raise ValueError(_unknown(variable.title, value, offered))
        if not values and not offered:
            raise ValueError(f"{board.title} needs a {variable.title.lower()}, and there is none")
        chosen[variable.name] = values or (offered[0],)
    return replace(scope, chosen=chosen)


def offered_values(variable: Variable, scope: Scope, server: Prometheus) -> list[str]:
    """The values that a variable offers within the range, the last by name first."""
    selector = scope.fill(variable.source)
    values = server.label_values(variable.label.name, selector, scope.start, scope.end)
    return sorted(values, reverse=True)


def _unknown(title: str, value: str, offered: list[str]) -> str:
    values = ", ".join(offered[:_MOST_NAMED]) or "none"
    more = ", ..." if len(offered) > _MOST_NAMED else ""
    return f"{title.lower()} {value!r} has no series in the range; there are: {values}{more}"


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
