"""Boards and their answers, made for the tests of snapshots."""

from collections.abc import Mapping
from typing import Any

from lockstep_dashboards.snapshot.answers import BoardAnswer, ask
from lockstep_dashboards.snapshot.board_file import GrafanaBoard, read_board
from lockstep_dashboards.snapshot.variables import choose
from lockstep_dashboards.snapshot.window import Window

from .fake_prometheus import FakePrometheus

WINDOW = Window.of(1_795_384_000.0, 1_795_384_800.0, 5.0)


def answer(board: GrafanaBoard, prometheus: FakePrometheus | None = None) -> BoardAnswer:
    with (prometheus or FakePrometheus()).source() as source:
        choices = choose(board, source, WINDOW, {}, strict=False)
        return ask(board, list(board.panels), choices, source=source, window=WINDOW)


def panel(kind: str, *targets: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    queries = [{"refId": "AB"[n], "expr": "up", **target} for n, target in enumerate(targets)]
    grid = {"x": 0, "y": 1, "w": 12, "h": 8}
    return {"id": 1, "type": kind, "title": "T", "gridPos": grid, "targets": queries} | fields


def board_of(*panels: dict[str, Any], **fields: Any) -> GrafanaBoard:
    return read_board({"uid": "u", "title": "Board", "panels": list(panels)} | fields)
