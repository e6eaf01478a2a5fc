"""Somebody else's dashboard: each panel that cannot be drawn says why, and asks nothing."""

from typing import Any

import pytest

from lockstep_dashboards.snapshot.page import PageOptions, board_page

from .board_answers import answer, board_of, panel
from .fake_prometheus import FakePrometheus

SERIES_UNIT = {
    "matcher": {"id": "byName", "options": "b"},
    "properties": [{"id": "unit", "value": "bytes"}],
}


def config(**defaults: Any) -> dict[str, Any]:
    return {"fieldConfig": {"defaults": defaults}}


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (panel("geomap", {}), "only Grafana draws the view 'geomap'"),
        (panel("graph", {}), "only Grafana draws the view 'graph'"),
        (panel("stat"), "it has no query"),
        (panel("stat", {"expr": "up", "hide": True}), "it has no query"),
        (panel("table", {"datasource": {"type": "loki"}}), "it asks the data source 'loki'"),
        (panel("stat", {}, datasource={"type": "mysql"}), "it asks the data source 'mysql'"),
        (panel("stat", {"expr": "up{x=~'$shard'}"}), "it uses the variable 'shard'"),
        (
            panel("table", {}, transformations=[{"id": "calculateField"}]),
            "it transforms its series by 'calculateField'",
        ),
        (
            panel("timeseries", {}, **config(custom={"stacking": {"mode": "percent"}})),
            "it stacks by per cent",
        ),
        (panel("stat", {}, **config(mappings=[{"type": "range"}])), "it maps values by 'range'"),
        (
            panel("stat", {}, **config(thresholds={"mode": "percentage", "steps": []})),
            "its thresholds are per cent of a range",
        ),
        (
            panel("stat", {}, options={"reduceOptions": {"calcs": ["mean"]}}),
            "it reduces its series to 'mean'",
        ),
        (
            panel("timeseries", {}, fieldConfig={"overrides": [SERIES_UNIT]}),
            "it overrides 'unit' of single series",
        ),
    ],
)
def test_a_panel_that_cannot_be_drawn_says_why_and_the_others_are_drawn(
    item: dict[str, Any], reason: str
) -> None:
    fake = FakePrometheus()
    other = panel("stat", {"expr": "fine"}, id=2, title="Other")
    page = board_page(answer(board_of(item, other), fake), PageOptions(address=""))
    assert fake.queries == ["fine"]
    assert f"This panel is not drawn: {reason}" in page.replace("&#39;", "'")
    assert ">Other<" in page


def test_variables_of_a_fixed_value_are_filled() -> None:
    fixed = {"name": "shard", "type": "custom", "current": {"value": "s-1"}}
    variable = {
        "name": "node", "type": "query", "query": 'label_values(up{a="b"}, node)', "multi": True,
    }  # fmt: skip
    fake = FakePrometheus(label_values={"node": ["n-1"]})
    item = panel("stat", {"expr": 'up{shard="$shard", node=~"$node.*"}'}, title="of ${shard}")
    page = board_page(
        answer(board_of(item, templating={"list": [fixed, variable]}), fake),
        PageOptions(address=""),
    )
    assert fake.queries == ['up{shard="s-1", node=~".*.*"}']
    assert ">of s-1<" in page
    assert "<b>node</b> all" in page


def test_a_text_is_shown_and_never_markup() -> None:
    text = "# Hello <img src=x> [x](javascript:alert(1)) $job_id"
    variable = {"name": "job_id", "type": "query", "query": "label_values(up, job_id)"}
    board = board_of(panel("text", options={"content": text}), templating={"list": [variable]})
    page = board_page(answer(board), PageOptions(address=""))
    assert "# Hello &lt;img src=x&gt; [x](javascript:alert(1)) demo" in page
