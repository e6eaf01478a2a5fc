"""The variables at the top of a board: what may be chosen, what is, and queries filled with it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from lockstep_dashboards.scope import quote_text
from lockstep_dashboards.snapshot.board_file import GrafanaBoard
from lockstep_dashboards.snapshot.window import Window
from lockstep_records.shared.prometheus import Prometheus

ALL = "$__all"
MAX_CHOICES = 500
_REFERENCE = re.compile(r"\$\{(\w+)(?::(\w+))?\}|\$(\w+)|\[\[(\w+)\]\]")
_LABEL_VALUES = re.compile(
    r"label_values\(\s*(?:(?P<selector>.+),)?\s*(?P<label>\w+)\s*\)", re.DOTALL
)
_DESCENDING = {2, 4, 6}
_MAX_NAMED = 8
_HIDDEN = 2


class VariableError(ValueError):
    """A value that nothing has; the text names those that there are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A variable of a board with the values that are chosen.

    Attributes:
        choices: what may be chosen.
        values: what is chosen; empty means all.
        all_value: what a query gets in place of all values; empty for every one of them.
        is_regex: whether queries match it as a regular expression.
        is_query: whether Prometheus was asked what may be chosen.
    """

    name: str
    title: str
    choices: tuple[str, ...]
    values: tuple[str, ...]
    offers_all: bool
    all_value: str
    is_regex: bool
    is_hidden: bool = False
    is_query: bool = True

    @property
    def missing(self) -> str:
        """A sentence on a chosen value that no series of the window has; empty if all have one."""
        lost = [value for value in self.values if value not in self.choices]
        if not self.is_query or (self.choices and not lost):
            return ""
        if not self.choices:
            # Nothing to choose from matters only where a board needs one value.
            return "" if self.offers_all else f"No series has a {self.name} in this window."
        values, offered = ", ".join(lost), ", ".join(self.choices[:_MAX_NAMED])
        return f"In this window no series has the {self.name} {values}; there is {offered}."

    @property
    def text(self) -> str:
        """What is chosen, for people."""
        return ", ".join(self.values) if self.values else "all"

    def filled(self, form: str) -> str:
        """What replaces a reference to the variable in a query."""
        values = self.values
        if not values:
            if self.all_value:
                return self.all_value
            values = self.choices
        if form == "raw":
            return ",".join(values)
        if form in {"csv", "pipe"}:
            return {"csv": ",", "pipe": "|"}[form].join(values)
        if not self.is_regex and form != "regex":
            return quote_text(",".join(values))
        escaped = [quote_text(re.escape(value)) for value in values]
        return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


def fill(text: str, choices: Iterable[Choice], built_in: Mapping[str, str]) -> str:
    """A query or title in which every reference to a variable is replaced.

    A name that is not a variable stays as it is: ``$1`` belongs to PromQL's ``label_replace``.
    """
    by_name = {choice.name: choice for choice in choices}

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3] or match[4]
        if name in built_in:
            return built_in[name]
        return by_name[name].filled(match[2] or "") if name in by_name else match[0]

    return _REFERENCE.sub(value, text)


def choose(
    board: GrafanaBoard,
    source: Prometheus,
    window: Window,
    wishes: Mapping[str, tuple[str, ...]],
    *,
    strict: bool,
) -> tuple[Choice, ...]:
    """Every variable of a board, with its values in the window.

    Args:
        board: the dashboard.
        source: the Prometheus, which knows the values of labels.
        window: in which a value must have a series.
        wishes: the values that are asked for, by the name of the variable.
        strict: refuse a value that nothing has, instead of taking it all the same.

    Raises:
        VariableError: a variable that the board does not have, or a value that nothing has.
        PrometheusError: the server does not answer, or is not a Prometheus.
    """
    names = [str(fields["name"]) for fields in board.variables if fields["type"] != "datasource"]
    for name in wishes:
        if strict and name not in names:
            raise VariableError(
                f"the board {board.uid} has no variable {name!r}; it has {', '.join(names)}"
            )
    chosen: list[Choice] = []
    for fields in board.variables:
        if fields["type"] == "datasource":
            continue
        choices = _choices(fields, chosen, source, window)
        wish = wishes.get(str(fields["name"]), ())
        if strict:
            _check(wish, fields, choices, window, source)
        chosen.append(_choice(fields, choices, wish))
    return tuple(chosen)


def _check(
    wish: tuple[str, ...],
    fields: Mapping[str, Any],
    choices: tuple[str, ...],
    window: Window,
    source: Prometheus,
) -> None:
    """Refuses values that no series has; names the closest ones, or the first."""
    if fields["type"] != "query":
        return
    for value in wish:
        if value in choices or value == ALL:
            continue
        name = fields["name"]
        where = f"{window.text} at {source.address}"
        if not choices:
            raise VariableError(f"no series has a {name} {where}; choose another window")
        close = get_close_matches(value, choices, n=1) or choices
        offered = ", ".join(dict.fromkeys([*close, *choices][:_MAX_NAMED]))
        raise VariableError(f"no series has the {name} {value!r} {where}; there is {offered}")


def _choices(
    fields: Mapping[str, Any], chosen: Iterable[Choice], source: Prometheus, window: Window
) -> tuple[str, ...]:
    """What a variable offers, in Grafana's order."""
    if fields["type"] != "query":
        return _listed(fields)
    query = fields.get("query", "")
    text = str(query.get("query", "") if isinstance(query, dict) else query)
    match = _LABEL_VALUES.fullmatch(text.strip())
    if match is None:
        return ()
    selector = fill((match["selector"] or "").strip(), chosen, window.built_in)
    values = source.label_values(match["label"], selector, window.begin, window.end)
    order = int(fields.get("sort", 0))
    if order:
        values.sort(key=_natural, reverse=order in _DESCENDING)
    return tuple(values[:MAX_CHOICES])


def _listed(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The values of a variable that asks no server."""
    options = [option for option in fields.get("options", ()) if isinstance(option, dict)]
    if options:
        values = (str(option["value"]) for option in options if "value" in option)
        return tuple(value for value in values if value != ALL)
    texts = str(fields.get("query", "")).split(",")
    # A custom variable may write `text : value`.
    return tuple(text.rpartition(" : ")[2].strip() for text in texts if text.strip())


def _choice(fields: Mapping[str, Any], choices: tuple[str, ...], wish: tuple[str, ...]) -> Choice:
    offers_all, is_several = bool(fields.get("includeAll")), bool(fields.get("multi"))
    values = wish or _current(fields, choices)
    if ALL in values and offers_all:
        values = ()
    elif not values and not offers_all:
        values = choices[:1]
    return Choice(
        name=str(fields["name"]),
        title=str(fields.get("label") or fields["name"]),
        choices=choices,
        values=values if is_several else values[:1],
        offers_all=offers_all,
        all_value=str(fields.get("allValue") or ""),
        is_regex=offers_all or is_several,
        is_hidden=fields.get("hide") == _HIDDEN or fields["type"] == "constant",
        is_query=fields["type"] == "query",
    )


def _current(fields: Mapping[str, Any], choices: tuple[str, ...]) -> tuple[str, ...]:
    """What the dashboard was saved with, where that exists."""
    value = fields.get("current", {}).get("value", ())
    values = tuple(map(str, value)) if isinstance(value, list) else (str(value),)
    return values if values and all(x == ALL or x in choices for x in values) else ()


def _natural(text: str) -> list[tuple[int, str]]:
    """Numbers within a text sort as numbers: node-2 before node-10."""
    parts = re.split(r"([0-9]+)", text)
    return [(int(part) if part.isdigit() else -1, part) for part in parts]
