"""Opens a board as Grafana does: a variable of one value takes the first that it offers."""

from collections.abc import Mapping
from dataclasses import replace

from lockstep_dashboards.panel import Board, Variable
from lockstep_dashboards.scope import Scope
from lockstep_records.prometheus import Prometheus

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


def choice(text: str) -> Mapping[str, tuple[str, ...]]:
    """The variable and value of ``name=value``.

    Raises:
        ValueError: it is not of this form.
    """
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise ValueError(f"--var {text!r} must be NAME=VALUE, such as node=node-0001")
    return {name: (value,)}
