"""Boards, their JSON and their answers, for the tests."""

from collections.abc import Iterator
from typing import Any

from lockstep_dashboards.panel import Board, Panel, Query, Row, View
from lockstep_dashboards.scope import Scope, open_board
from lockstep_dashboards.snapshot.answers import BoardAnswer, ask

from .fake_prometheus import FakePrometheus

SCOPE = Scope(end=1_795_384_800.0, range_seconds=800, scrape_seconds=5.0, max_points=240)


def answer(board: Board, prometheus: FakePrometheus | None = None) -> BoardAnswer:
    with (prometheus or FakePrometheus()).source() as source:
        return ask(board, board.panels, open_board(board, SCOPE, source, strict=False), source)


def panel(view: View, *queries: Query, **fields: Any) -> Panel:
    """A panel of half the width; without queries it asks ``up``."""
    texts: dict[str, Any] = {
        "title": "T",
        "description": "",
        "unit": "short",
        "width": 12,
        "height": 8,
    } | fields
    return Panel(view=view, queries=queries or (Query(expression="up"),), **texts)


def board_of(*panels: Panel, **fields: Any) -> Board:
    texts: dict[str, Any] = {
        "uid": "own",
        "title": "Board",
        "description": "",
        "variables": (),
    } | fields
    return Board(**{"rows": (Row(title="", panels=panels),), **texts})


def panels_of(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every panel of a dashboard's JSON, without the headings, those of closed rows too."""
    for panel_json in dashboard["panels"]:
        yield from panel_json["panels"] if panel_json["type"] == "row" else [panel_json]
