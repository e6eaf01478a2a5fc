"""Boards, their JSON and their answers, for the tests."""

from collections.abc import Iterator, Mapping
from typing import Any

from lockstep_dashboards.foreign import read_dashboard
from lockstep_dashboards.opening import open_board
from lockstep_dashboards.panel import Board
from lockstep_dashboards.scope import Scope
from lockstep_dashboards.snapshot.answers import BoardAnswer, ask

from .fake_prometheus import FakePrometheus

SCOPE = Scope(end=1_795_384_800.0, range_seconds=800, scrape_seconds=5.0, max_points=240)


def answer(board: Board, prometheus: FakePrometheus | None = None) -> BoardAnswer:
    with (prometheus or FakePrometheus()).source() as source:
        return ask(board, board.panels, open_board(board, SCOPE, source, strict=False), source)


def panel(kind: str, *targets: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    queries = [{"refId": "AB"[n], "expr": "up", **target} for n, target in enumerate(targets)]
    grid = {"x": 0, "y": 1, "w": 12, "h": 8}
    return {"id": 1, "type": kind, "title": "T", "gridPos": grid, "targets": queries} | fields


def board_of(*panels: dict[str, Any], **fields: Any) -> Board:
    return read_dashboard({"uid": "u", "title": "Board", "panels": list(panels)} | fields)


def panels_of(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every panel of a dashboard's JSON, without the headings, those of closed rows too."""
    for panel_json in dashboard["panels"]:
        yield from panel_json["panels"] if panel_json["type"] == "row" else [panel_json]
