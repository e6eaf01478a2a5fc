"""The rules that boards obey: bounds, recorded series, explanations, rates."""

import re
from collections.abc import Callable, Iterator, Mapping

import pytest
from simulated_cluster.boards_on_cluster import num_opening_queries

from lockstep_catalogue import Kind, Metric, Recorded
from lockstep_catalogue.labels import CLUSTER, JOB_ID, RANK
from lockstep_dashboards.layout import BOARDS
from lockstep_dashboards.panel import Board, Panel, View
from lockstep_dashboards.scope import Scope
from lockstep_prometheus.promql import Selector, selectors

MAX_OPEN_PANELS = 25
MAX_OPENING_QUERIES = 25
MAX_PANELS = 200
_ANNOTATIONS = ("Critical alerts", "Restarts")
# A limit in words, such as "below 8 %", in what a description says is good.
_LIMIT = re.compile(
    r"Good: [^.]*\b(?:below|under|above|over|at least|at most|within|younger than|more than) [0-9]"
)
_ALERTS = re.compile(r"\bALERTS(?:_FOR_STATE)?\b(?:\{([^}]*)\})?")
_LEAST_FIRST = re.compile(r"^bottomk\(")
_SCOPE = Scope(
    chosen={"job_id": ("a",), "node": ("n",)}, end=1e9, range_seconds=900, scrape_seconds=15
)
_RATE_SECONDS = 60.0
_GROWTH = ("rate", "irate", "increase")
# The count itself is meant where a query says so: its last or highest value over a range.
_COUNTER_FUNCTIONS = (*_GROWTH, "last_over_time", "max_over_time")


def _queries(board: Board) -> Iterator[tuple[Panel, str]]:
    for panel in board.panels:
        for query in panel.queries:
            yield panel, query.expression


def _read(board: Board) -> Iterator[tuple[Panel, str, Selector]]:
    for panel, expression in _queries(board):
        for selector in selectors(_SCOPE.fill(expression)):
            yield panel, expression, selector


def _bounds(board: Board) -> Iterator[str]:
    if len(board.opened_panels) > MAX_OPEN_PANELS:
        yield f"opens {len(board.opened_panels)} panels, more than {MAX_OPEN_PANELS}"
    number = num_opening_queries(board)
    if number > MAX_OPENING_QUERIES:
        yield f"asks {number} times when opened, over {MAX_OPENING_QUERIES}"


def _cluster(board: Board) -> Iterator[str]:
    for panel, _, each in _read(board):
        if each.series is None:
            yield f"{panel.title}: {each.name} is not in the catalogue"
        elif CLUSTER in each.series.exposed_labels and CLUSTER.name not in {
            name for name, _, _ in each.matchers
        }:
            yield f"{panel.title}: {each.name} is of all clusters, not of the chosen ones"


def _ranks(board: Board) -> Iterator[str]:
    """Where no single job is chosen, a series a rank would be thousands."""
    if JOB_ID.name in {variable.name for variable in board.variables}:
        return
    for panel, expression, each in _read(board):
        is_per_rank = each.series is not None and RANK in each.series.exposed_labels
        if is_per_rank and " by (" not in expression and "topk(" not in expression:
            yield f"{panel.title}: {each.name} is asked for by rank"


def _objectives(board: Board) -> Iterator[str]:
    for panel, _, each in _read(board):
        if panel.shows_windows and not isinstance(each.series, Recorded):
            yield f"{panel.title}: an objective is read from {each.name}, not recorded"


def _explained(board: Board) -> Iterator[str]:
    for panel in board.panels:
        for word in ("Good: ", "Otherwise: ", "Series: "):
            if word not in panel.description:
                yield f"{panel.title}: the description lacks {word.strip()}"


def _no_constants(board: Board) -> Iterator[str]:
    for panel, expression in _queries(board):
        if "vector(" in expression or "absent(" in expression:
            yield f"{panel.title}: a constant hides missing data"


def _annotated(board: Board) -> Iterator[str]:
    missing = set(_ANNOTATIONS) - {annotation.title for annotation in board.annotations}
    for title in sorted(missing):
        yield f"draws no {title.lower()}"


def _titles(board: Board) -> Iterator[str]:
    titles = [panel.title for panel in board.panels]
    for title in sorted({title for title in titles if titles.count(title) > 1}):
        yield f"has two panels that are called {title}"


def _no_value(board: Board) -> Iterator[str]:
    for panel in board.panels:
        if panel.view is View.STAT and not panel.no_value:
            yield f"{panel.title}: says nothing where no series has a value"


def _limits(board: Board) -> Iterator[str]:
    for panel in board.panels:
        if _LIMIT.search(panel.description) and not panel.thresholds:
            yield f"{panel.title}: states a limit in words and shows none"


def _sorted(board: Board) -> Iterator[str]:
    """A table of the least begins with the least, and one of the most with the most."""
    for panel in board.panels:
        if panel.view is not View.TABLE:
            continue
        first = (
            panel.queries[panel.value_names.index(panel.sorted_by)]
            if (panel.sorted_by in panel.value_names)
            else panel.queries[0]
        )
        if _LEAST_FIRST.match(first.expression) and not panel.ascending:
            yield f"{panel.title}: shows the least and begins with the most"


def _columns(board: Board) -> Iterator[str]:
    for panel in board.panels:
        if panel.view is View.TABLE:
            values = zip(panel.value_names, panel.ones, strict=True)
            names = [label.name for label in panel.columns]
            names += [name for name, is_one in values if not is_one]
            if panel.title in names or len(set(names)) < len(names):
                yield f"{panel.title}: a column repeats the title or another column"


def _alerts(board: Board) -> Iterator[str]:
    """Watchdog always fires, and alerts of no severity only keep others quiet."""
    expressions = [expression for _, expression in _queries(board)]
    expressions += [annotation.expression for annotation in board.annotations]
    for expression in expressions:
        for found in _ALERTS.finditer(expression):
            if "severity" not in (found[1] or ""):
                yield f"reads alerts of any severity, Watchdog too: {expression}"


def _rates(board: Board) -> Iterator[str]:
    """As dashboard-linter's target-rate-interval and target-counter-agg rules have it."""
    for panel, _, each in _read(board):
        if each.function in {"rate", "irate"} and each.range_seconds != _RATE_SECONDS:
            yield f"{panel.title}: {each.function} over {each.range_seconds:g} s"
        is_counter = isinstance(each.series, Metric) and each.series.kind is Kind.COUNTER
        if is_counter and each.function not in _COUNTER_FUNCTIONS:
            yield f"{panel.title}: {each.name} is a counter and has no rate or increase"


RULES: Mapping[str, Callable[[Board], Iterator[str]]] = {
    "bounds": _bounds,
    "chosen-cluster": _cluster,
    "no-raw-ranks": _ranks,
    "objectives-are-recorded": _objectives,
    "explained": _explained,
    "no-constants": _no_constants,
    "annotated": _annotated,
    "unique-titles": _titles,
    "no-value": _no_value,
    "limits-are-shown": _limits,
    "worst-first": _sorted,
    "no-repeated-columns": _columns,
    "alerts-of-a-severity": _alerts,
    "rates": _rates,
}


@pytest.mark.parametrize("board", BOARDS.values(), ids=lambda board: board.uid)
@pytest.mark.parametrize("rule", RULES)
def test_a_board_obeys_the_rule(board: Board, rule: str) -> None:
    assert list(RULES[rule](board)) == []


def test_there_are_no_more_panels_than_anybody_reads_and_uids_follow_from_files() -> None:
    assert sum(len(board.panels) for board in BOARDS.values()) <= MAX_PANELS
    assert [board.uid for board in BOARDS.values()] == [
        f"lockstep-{name.removesuffix('.json')}" for name in BOARDS
    ]
