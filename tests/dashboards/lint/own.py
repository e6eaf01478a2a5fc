"""The project's own rules: bounds, recorded series, explanations, links, coverage."""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations

from simulated_cluster.boards_on_cluster import num_opening_queries

from lockstep_catalogue import METRICS, RECORDED, Series
from lockstep_catalogue.labels import CLUSTER, JOB_ID, RANK
from lockstep_dashboards.packing import pack
from lockstep_dashboards.panel import Board, Panel, View

from .promql_text import selectors

MAX_OPEN_PANELS = 25
MAX_OPENING_QUERIES = 25
MAX_PANELS = 180
_ANNOTATIONS = ("Critical alerts", "Restarts")
_ALL: tuple[Series, ...] = (*METRICS, *RECORDED)
_SERIES = {each.name: each for each in _ALL}
_SUFFIXES = ("_bucket", "_sum", "_count")
# A limit in words, such as "below 8 %", in what a description says is good.
_LIMIT = re.compile(
    r"Good: [^.]*\b(?:below|under|above|over|at least|at most|within|younger than|more than) [0-9]"
)
_ALERTS = re.compile(r"\bALERTS(?:_FOR_STATE)?\b(?:\{([^}]*)\})?")
_LEAST_FIRST = re.compile(r"^bottomk\(")


def _series(name: str) -> str:
    """The name in the catalogue of a series as it is stored."""
    for suffix in _SUFFIXES:
        if name not in _SERIES and name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def _queries(board: Board) -> Iterator[tuple[Panel, str]]:
    for panel in board.panels:
        for query in panel.queries:
            yield panel, query.expression


def _bounds(board: Board) -> Iterator[str]:
    if len(board.opened_panels) > MAX_OPEN_PANELS:
        yield f"opens {len(board.opened_panels)} panels, more than {MAX_OPEN_PANELS}"
    number = num_opening_queries(board)
    if number > MAX_OPENING_QUERIES:
        yield f"asks {number} times when opened, over {MAX_OPENING_QUERIES}"


def _cluster(board: Board) -> Iterator[str]:
    for panel, expression in _queries(board):
        for name, matchers in selectors(expression):
            series = _SERIES.get(_series(name))
            if series is None:
                yield f"{panel.title}: {name} is not in the catalogue"
            elif CLUSTER in series.exposed_labels and 'cluster=~"$cluster"' not in matchers:
                yield f"{panel.title}: {name} is of all clusters, not of the chosen ones"


def _ranks(board: Board) -> Iterator[str]:
    """Where no single job is chosen, a series a rank would be thousands."""
    if JOB_ID.name in {variable.name for variable in board.variables}:
        return
    for panel, expression in _queries(board):
        for name, _ in selectors(expression):
            series = _SERIES.get(_series(name))
            is_per_rank = series is not None and RANK in series.exposed_labels
            if is_per_rank and " by (" not in expression and "topk(" not in expression:
                yield f"{panel.title}: {name} is asked for by rank"


def _objectives(board: Board) -> Iterator[str]:
    for panel in board.panels:
        if panel.shows_windows:
            for query in panel.queries:
                for name, _ in selectors(query.expression):
                    if ":" not in name:
                        yield f"{panel.title}: an objective is read from {name}, not recorded"


def _explained(board: Board) -> Iterator[str]:
    for panel in board.panels:
        if panel.view is View.TEXT:
            continue
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


def _grid(board: Board) -> Iterator[str]:
    placed = pack(board.rows)
    for (first, position), (second, other) in combinations(placed, 2):
        apart = (
            position.x + position.width <= other.x
            or other.x + other.width <= position.x
            or position.y + position.height <= other.y
            or other.y + other.height <= position.y
        )
        if not apart:
            yield f"{first.title} and {second.title} overlap"


def _titles(board: Board) -> Iterator[str]:
    titles = [panel.title for panel in board.panels]
    for title in sorted({title for title in titles if titles.count(title) > 1}):
        yield f"has two panels that are called {title}"


def _instant(board: Board) -> Iterator[str]:
    """A figure of now that is a query over a range shows the last value there was."""
    for panel in board.panels:
        if panel.view in {View.STAT, View.TABLE, View.BAR_GAUGE} and not panel.is_instant:
            yield f"{panel.title}: shows a value of now by a query over the range"


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


OWN_RULES: Mapping[str, Callable[[Board], Iterator[str]]] = {
    "bounds": _bounds,
    "chosen-cluster": _cluster,
    "no-raw-ranks": _ranks,
    "objectives-are-recorded": _objectives,
    "explained": _explained,
    "no-constants": _no_constants,
    "annotated": _annotated,
    "no-overlap": _grid,
    "unique-titles": _titles,
    "instant": _instant,
    "no-value": _no_value,
    "limits-are-shown": _limits,
    "worst-first": _sorted,
    "no-repeated-columns": _columns,
    "alerts-of-a-severity": _alerts,
}


def too_many(boards: Mapping[str, Board]) -> Iterator[str]:
    """More panels than anybody reads."""
    number = sum(len(board.panels) for board in boards.values())
    if number > MAX_PANELS:
        yield f"{number} panels, more than {MAX_PANELS}"


def bad_uids(boards: Mapping[str, Board]) -> Iterator[str]:
    """Boards whose uid does not follow from their file, so that links to them may break."""
    for file_name, board in boards.items():
        if board.uid != f"lockstep-{file_name.removesuffix('.json')}":
            yield f"{file_name} has the uid {board.uid}"
