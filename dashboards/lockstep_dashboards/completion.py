"""Completes the boards: what the catalogue has and no layout shows gets a panel in a closed row."""

import re
from collections.abc import Mapping
from dataclasses import replace

from lockstep_catalogue import METRICS, Kind, Metric
from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.promql import by, increase, select
from lockstep_dashboards.chosen import restrict
from lockstep_dashboards.panel import Board, Panel, Query, Row, View
from lockstep_dashboards.series_panels import panel

ROW_TITLE = "Also measured"
_BOARD_OF_PART = {"train": "job", "fabric": "fabric", "ledger": "executive"}
_DEFAULT_BOARD = "node"
_MOST_ROWS = 50
_WORD = re.compile(r"\w+")


def complete(boards: Mapping[str, Board]) -> dict[str, Board]:
    """The boards, with a closed row of the metrics that none of them shows."""
    texts = [
        query.expression
        for board in boards.values()
        for each in board.panels
        for query in each.queries
    ]
    drawn = frozenset(_WORD.findall(" ".join(texts)))
    completed = dict(boards)
    for metric in METRICS:
        if not drawn.intersection(metric.sample_names):
            name = f"{_BOARD_OF_PART.get(metric.name.split('_')[1], _DEFAULT_BOARD)}.json"
            completed[name] = _append(completed[name], metric)
    return completed


def _append(board: Board, metric: Metric) -> Board:
    *rows, last = board.rows
    if last.title == ROW_TITLE:
        last = replace(last, panels=(*last.panels, _table(board, metric)))
        return replace(board, rows=(*rows, last))
    row = Row(title=ROW_TITLE, panels=(_table(board, metric),), collapsed=True)
    return replace(board, rows=(*board.rows, row))


def _table(board: Board, metric: Metric) -> Panel:
    """A table of the largest values: of a gauge now, of what is counted within the range."""
    labels = metric.exposed_labels
    is_gauge = metric.kind is Kind.GAUGE
    value = select(metric) if is_gauge else increase(metric, "$__range")
    text = f"topk({_MOST_ROWS}, {by('max' if is_gauge else 'sum', value, *labels)})"
    return panel(
        View.TABLE,
        metric,
        Query(expression=restrict(text, board.variables)),
        note="" if is_gauge else "Within the range.",
        good="as in comparable jobs and on comparable nodes.",
        otherwise="docs/metrics.md says where the value comes from.",
        columns=tuple(label for label in labels if label != CLUSTER),
        unit=None if metric.unit.value != "timestamp_seconds" else "dateTimeFromNow",
        may_be_empty="what nothing reports has no series",
    )
