"""Makes Grafana's JSON of a board; the only module that knows grafanalib, and it mends its output.

Grafanalib writes schema 12, nulls, and keys that Grafana dropped long ago. Only the keys that stand
here leave this module.
"""

import json
from typing import Any

from grafanalib import core
from grafanalib._gen import DashboardEncoder

from lockstep_dashboards.packing import Place, pack
from lockstep_dashboards.panel import Board, Panel, Row
from lockstep_dashboards.panel_json import (
    SOURCE,
    annotation,
    label_variable,
    shape,
    source_variable,
    target,
)

SCHEMA_VERSION = 39  # the classic schema that Grafana 10.3 reads and 13 still takes over
HOW_TO_REMAKE = "Made by `lockstep dashboards generate`; change the Python, not this file."

_BOARD_KEYS = (
    *("description", "uid", "title", "tags", "schemaVersion", "editable", "graphTooltip"),
    *("refresh", "time", "timezone", "templating", "annotations", "links", "panels"),
)
_ROW_KEYS = ("id", "type", "title", "gridPos", "collapsed", "panels")
_PANEL_KEYS = (
    *("id", "type", "title", "description", "datasource", "gridPos", "targets", "fieldConfig"),
    *("options", "transformations"),
)
_TAG = "lockstep"


def board_json(board: Board) -> str:
    """The text of a board's file, the same whenever it is made."""
    return json.dumps(render(board), indent=2) + "\n"


def render(board: Board) -> dict[str, Any]:
    """A board in the classic JSON that Grafana 10.3 to 13 load."""
    variables = [source_variable(), *map(label_variable, board.variables)]
    made = core.Dashboard(
        title=board.title,
        uid=board.uid,
        description=f"{HOW_TO_REMAKE} {board.description}",
        tags=[_TAG],
        schemaVersion=SCHEMA_VERSION,
        editable=False,
        graphTooltip=1,  # one crosshair over all panels
        refresh="1m",
        time=core.Time("now-1h", "now"),
        timezone="browser",
        templating=core.Templating(list=variables),
        annotations=core.Annotations(list=[annotation(told) for told in board.annotations]),
        links=[core.DashboardLink(title="Lockstep", tags=[_TAG], asDropdown=True)],
        panels=[
            _row(what, place, number) if isinstance(what, Row) else _panel(what, place, number)
            for number, (what, place) in enumerate(pack(board.rows), start=1)
        ],
    )
    return normalise(json.loads(json.dumps(made.to_json_data(), cls=DashboardEncoder)))


def _grid(place: Place) -> core.GridPos:
    return core.GridPos(x=place.x, y=place.y, w=place.width, h=place.height)


def _row(row: Row, place: Place, number: int) -> core.RowPanel:
    return core.RowPanel(title=row.title, gridPos=_grid(place), id=number)


def _panel(panel: Panel, place: Place, number: int) -> dict[str, Any]:
    letters = [chr(ord("A") + n) for n in range(len(panel.queries))]
    base = core.Panel(
        id=number,
        title=panel.title,
        description=panel.description,
        gridPos=_grid(place),
        dataSource=SOURCE,
        targets=[target(panel, query, x) for query, x in zip(panel.queries, letters, strict=True)],
    )
    made: dict[str, Any] = base.panel_json(shape(panel))
    return made


def normalise(told: dict[str, Any]) -> dict[str, Any]:
    """A board with the keys that count, in their order, and without a null."""
    board = _keep(told, _BOARD_KEYS)
    board["panels"] = [
        _keep(panel, _ROW_KEYS if panel["type"] == "row" else _PANEL_KEYS)
        for panel in told["panels"]
    ]
    whole: dict[str, Any] = _without_nulls(board)
    return whole


def _keep(told: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: told[key] for key in keys if key in told}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    if isinstance(value, list):
        return [_without_nulls(part) for part in value if part is not None]
    return value
