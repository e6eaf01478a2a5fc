"""Grafana's own SDK reads every board without loss of a panel or a query.

It parses and does not validate; what it drops would be dropped by Grafana's typed readers too.
"""

from typing import Any

import pytest
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboard as sdk

from lockstep_dashboards.boards import BOARDS
from lockstep_dashboards.grafana import render
from lockstep_dashboards.panel import Board

from .board_answers import panels_of

Read = list[tuple[Any, ...]]


def ours(board: Board) -> Read:
    """What each panel says, as it was generated."""
    return [
        (
            *(panel["id"], panel["type"], panel["title"], [x["expr"] for x in panel["targets"]]),
            (panel["fieldConfig"]["defaults"]["unit"], len(panel["fieldConfig"]["overrides"])),
        )
        for panel in panels_of(render(board))
    ]


def theirs(dashboard: Any) -> Read:
    """The same, as the SDK read it, closed rows too."""
    panels: list[Any] = []
    for item in dashboard.panels:
        panels += item.panels if isinstance(item, sdk.RowPanel) else [item]
    return [
        (
            *(panel.id_val, panel.type_val, panel.title, [x.expr for x in panel.targets]),
            (panel.field_config.defaults.unit, len(panel.field_config.overrides)),
        )
        for panel in panels
    ]


@pytest.mark.parametrize("board", BOARDS.values(), ids=lambda board: board.uid)
def test_the_sdk_reads_every_panel_and_every_query(board: Board) -> None:
    register_default_plugins()
    rendered = render(board)
    read = sdk.Dashboard.from_json(rendered)
    assert theirs(read) == ours(board)
    assert read.templating is not None
    assert [each.name for each in read.templating.list_val or []] == [
        each["name"] for each in rendered["templating"]["list"]
    ]
    assert len(read.annotations.list_val or []) == len(board.annotations)
