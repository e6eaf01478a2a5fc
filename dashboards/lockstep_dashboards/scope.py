"""The scope of a board: the values of its variables, and a range of time."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from lockstep_catalogue.labels import CLUSTER, JOB_ID
from lockstep_dashboards.panel import Board, Panel, Query, Variable
from lockstep_prometheus.client import Prometheus, Series
from lockstep_records.text.durations import format_time, parse_time

_POINTS = 120  # a panel of usual width has about as many; Prometheus allows 11,000
_RATE_SCRAPES = 4
_MATCHER = re.compile(r'(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')
_REFERENCE = re.compile(r"\$\{(\w+)\}|\$([A-Za-z_]\w*)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """Values of variables, and the range of time.

    Attributes:
        scrape_seconds: time between scrapes; rates reach over four of them.
        chosen: values of the variables by their names; all values of one that is absent.
        offered: the values that each variable offers, once the board is opened.
    """

    end: float
    range_seconds: float
    scrape_seconds: float
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    offered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    max_points: int = _POINTS

    @property
    def start(self) -> float:
        """Seconds since the epoch, a whole number of steps: windows that overlap share points."""
        return math.floor((self.end - self.range_seconds) / self.step_seconds) * self.step_seconds

    @property
    def step_seconds(self) -> float:
        """Time between two points, whole seconds and at least one scrape."""
        points_apart = math.ceil(self.range_seconds / self.max_points)
        return float(max(points_apart, math.ceil(self.scrape_seconds)))

    @property
    def num_points(self) -> int:
        """Number of points of a query over the range."""
        return math.floor((self.end - self.start) / self.step_seconds) + 1

    @property
    def text(self) -> str:
        """Begin and end for people."""
        return f"between {format_time(self.start)} and {format_time(self.end)} UTC"

    @property
    def built_in(self) -> dict[str, str]:
        """Grafana's variables of time by their name without the dollar.

        Source: <https://grafana.com/docs/grafana/latest/datasources/prometheus/template-variables/>
        """
        step, scrape = self.step_seconds, self.scrape_seconds
        seconds = math.ceil(self.range_seconds)
        return {
            "__rate_interval": f"{math.ceil(max(step + scrape, _RATE_SCRAPES * scrape))}s",
            "__interval": f"{math.ceil(step)}s",
            "__interval_ms": f"{math.ceil(step * 1000)}",
            "__range": f"{seconds}s",
            "__range_s": f"{seconds}",
            "__range_ms": f"{seconds * 1000}",
        }

    def fill(self, expression: str) -> str:
        """An expression with every variable replaced, as Grafana does.

        A name of nothing stays: ``$1`` belongs to PromQL's ``label_replace``. A matcher that has no
        value to compare with is a ValueError.
        """
        # Each piece is filled once: a value that looks like a variable stays what it is.
        filled, at = list[str](), 0
        for matcher in _MATCHER.finditer(expression):
            filled += self.fill_text(expression[at : matcher.start()]), self._fill_matcher(matcher)
            at = matcher.end()
        return "".join([*filled, self.fill_text(expression[at:])])

    def fill_text(self, text: str) -> str:
        """A title or text in which each variable is replaced by its values; what is none stays."""
        variables = {**self.offered, **self.chosen}

        def replaced(found: re.Match[str]) -> str:
            name = _referred_name(found)
            if name in self.built_in:
                return self.built_in[name]
            return ", ".join(self.chosen.get(name, ())) or "all" if name in variables else found[0]

        return _REFERENCE.sub(replaced, text)

    def _fill_matcher(self, found: re.Match[str]) -> str:
        operator, inside = found.groups()
        is_pattern = operator.endswith("~")
        return f'{operator}"{_REFERENCE.sub(lambda x: self._value(x, is_pattern), inside)}"'

    def _value(self, found: re.Match[str], is_pattern: bool) -> str:
        name = _referred_name(found)
        if name in self.built_in:
            return self.built_in[name]
        values = self.chosen.get(name, ())
        if is_pattern:
            escaped = [quote_text(re.escape(value)) for value in values] or [".*"]
            return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"
        if len(values) != 1:
            raise ValueError(f"the variable {name} needs one value and has {len(values)}; give it")
        return quote_text(values[0])


def _referred_name(found: re.Match[str]) -> str:
    return str(found[1] or found[2])


def quote_text(text: str) -> str:
    """Text escaped for the quotes of a PromQL string."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def parse_range(begin: str, end: str, now: float) -> tuple[float, float]:
    """Length and end of a range in seconds, which ends now at the latest; or ValueError."""
    first, last = parse_time(begin, now), min(parse_time(end, now), now)
    if first >= now:
        raise ValueError(f"--from {begin} is {format_time(first)} UTC, which is not over yet")
    if not first < last:
        raise ValueError(
            f"the window ends at {format_time(last)} and begins at {format_time(first)};"
            " it must end later"
        )
    return last - first, last


_MOST_NAMED = 8
_MOST_OFFERED = 500


def open_board(board: Board, scope: Scope, server: Prometheus, *, strict: bool = True) -> Scope:
    """The scope with what each variable of the board offers, and a value where it needs one.

    ``strict`` refuses a value that nothing has, by a ValueError, instead of taking it all the same.
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
    """Refuses variables that the board lacks, by a ValueError with those that it has."""
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
    """The series of a panel's query; PrometheusError, or QueryError where that is refused."""
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
    """The chosen values by the name of the variable; ValueError for other than NAME=VALUE."""
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
