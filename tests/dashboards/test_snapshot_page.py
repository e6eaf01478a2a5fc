"""A snapshot's page: the board's layout and values, no network, and nothing of it is believed."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from itertools import combinations
from typing import Any

import plotly.graph_objects as go
import pytest

from lockstep_dashboards.boards import BOARDS
from lockstep_dashboards.snapshot.answers import BoardAnswer, ask
from lockstep_dashboards.snapshot.board_file import GrafanaBoard, read_board
from lockstep_dashboards.snapshot.page import (
    PageOptions,
    board_page,
    draw,
    page_content,
    page_height,
)
from lockstep_dashboards.snapshot.shipped import KnownBoard, shipped_boards
from lockstep_dashboards.snapshot.variables import choose, fill
from lockstep_dashboards.snapshot.views.drawing import Drawing, Scene
from lockstep_dashboards.snapshot.window import Window
from lockstep_records.intervals import do_overlap

from .fake_prometheus import FakePrometheus

WINDOW = Window.of(1_795_384_000.0, 1_795_384_800.0, 5.0)
OPTIONS = PageOptions(address="http://prometheus:9090")
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"{{7*7}}%{y}"
EVERY_BOARD = pytest.mark.parametrize("item", shipped_boards(), ids=lambda item: item.name)


class Elements(HTMLParser):
    """Tags with their attributes, and the texts of the scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._is_script = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._is_script = tag == "script"
        if self._is_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._is_script = self._is_script and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._is_script:
            self.scripts[-1] += data


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


def drawing(item: dict[str, Any], prometheus: FakePrometheus) -> Drawing:
    found = answer(board_of(item), prometheus)
    return draw(found.panels[0], Scene(window=WINDOW, events=found.events), {})


@EVERY_BOARD
def test_every_panel_of_a_board_is_drawn_and_its_figure_is_valid(item: KnownBoard) -> None:
    found = answer(item.board, FakePrometheus(events=[{"alertname": "A", "attempt": "1"}]))
    content = page_content(found, OPTIONS)
    drawn = [entry for section in content["sections"] for entry in section["panels"]]
    assert len(drawn) == len(list(item.board.panels))
    for entry in drawn:
        assert entry["drawing"].view != "message", entry["title"]
        if entry["drawing"].figure:
            go.Figure(entry["drawing"].figure)
            # Annotations are on every axis of time.
            assert len(entry["drawing"].figure["layout"]["shapes"]) >= len(found.events) > 0


@EVERY_BOARD
def test_no_two_panels_share_a_cell_of_the_grid(item: KnownBoard) -> None:
    for section in page_content(answer(item.board), OPTIONS)["sections"]:
        cells = [
            (x["panel"].x, x["panel"].width, x["row"], x["panel"].height) for x in section["panels"]
        ]
        assert all(x + width <= 24 for x, width, _, _ in cells)
        for (x, width, row, height), (x2, width2, row2, height2) in combinations(cells, 2):
            apart = not do_overlap(x, x + width, x2, x2 + width2)
            assert apart or not do_overlap(row, row + height, row2, row2 + height2)


def test_every_shipped_board_can_be_drawn_by_its_name() -> None:
    assert [item.name for item in shipped_boards()] == [x.removesuffix(".json") for x in BOARDS]


def test_a_page_asks_no_network_and_runs_its_own_scripts_only() -> None:
    page = board_page(answer(shipped_boards()[0].board), OPTIONS)
    elements = Elements(page)
    policy = next(x for tag, x in elements.tags if x.get("http-equiv"))["content"] or ""
    assert "default-src 'none'" in policy
    assert "connect-src" not in policy
    plotly, own = (script for script in elements.scripts if not script.startswith("{"))
    for script in (plotly, own):
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    for tag, attributes in elements.tags:
        assert tag not in {"link", "iframe", "img", "object"}
        assert "src" not in attributes
        assert not (attributes.get("href") or "").startswith(("http", "//"))


def test_what_is_hostile_in_labels_and_titles_stays_text() -> None:
    hostile = FakePrometheus(
        series=[({"rank": HOSTILE, "job_id": HOSTILE, "le": "1", HOSTILE: "x"}, 1.0)],
        label_values={"job_id": [HOSTILE], "cluster": [HOSTILE]},
        events=[{"alertname": HOSTILE}],
    )
    color = {"mode": "fixed", "fixedColor": HOSTILE}
    item = panel(
        "timeseries",
        {"legendFormat": "{{rank}}"},
        title=HOSTILE,
        description=HOSTILE,
        fieldConfig={"defaults": {"unit": HOSTILE, "color": color}},
    )
    views = ["table", "stat", "bargauge", "state-timeline", "heatmap"]
    others = [
        item | {"id": n, "type": kind, "gridPos": {"x": 0, "y": 10 * n, "w": 12, "h": 8}}
        for n, kind in enumerate(views, start=2)
    ]
    text = panel("text", options={"content": f"[x](javascript:alert(1)) {HOSTILE}"}, id=9)
    variables = shipped_boards()[0].board.variables
    board = board_of(
        item, *others, text, title=HOSTILE, templating={"list": list(variables)},
        annotations={"list": [{"name": HOSTILE, "expr": "ALERTS", "iconColor": HOSTILE}]},
    )  # fmt: skip
    elements = Elements(board_page(answer(board, hostile), OPTIONS))
    assert len(elements.scripts) == 3
    assert not any(tag == "img" for tag, _ in elements.tags)
    for _, attributes in elements.tags:
        assert not any(name.startswith("on") for name in attributes)
        assert "javascript" not in (attributes.get("href") or "")
        assert "alert" not in (attributes.get("style") or "")
    data = next(script for script in elements.scripts if script.startswith("{"))
    assert "<" not in data
    # plotly takes markup in names for markup, unless it is escaped.
    assert "<script>" not in json.loads(data)["1"]["data"][0]["name"]


def test_a_stack_is_filled_and_a_stack_in_percent_sums_to_a_hundred() -> None:
    stacking = {"custom": {"stacking": {"mode": "percent"}}, "unit": "short"}
    two = FakePrometheus(series=[({"state": "a"}, 1.0), ({"state": "b"}, 2.0)])
    drawn = drawing(
        panel("timeseries", {"legendFormat": "{{state}}"}, fieldConfig={"defaults": stacking}), two
    )
    assert drawn.figure is not None
    assert [trace["groupnorm"] for trace in drawn.figure["data"]] == ["percent", "percent"]
    assert [entry.name for entry in drawn.legend] == ["a", "b"]


def test_a_unit_of_its_own_has_an_axis_on_the_right() -> None:
    override = {
        "matcher": {"id": "byName", "options": "b"},
        "properties": [{"id": "unit", "value": "bytes"}],
    }
    config = {"defaults": {"unit": "s"}, "overrides": [override]}
    two = FakePrometheus(series=[({"x": "a"}, 1.0), ({"x": "b"}, 2048.0)])
    drawn = drawing(panel("timeseries", {"legendFormat": "{{x}}"}, fieldConfig=config), two)
    assert drawn.figure is not None
    assert [trace.get("yaxis") for trace in drawn.figure["data"]] == [None, "y2"]
    assert drawn.figure["layout"]["yaxis2"]["ticksuffix"] == " KiB"


def test_a_heat_map_of_a_histogram_shows_what_falls_into_each_bucket_alone() -> None:
    buckets = FakePrometheus(
        series=[
            ({"le": "+Inf"}, 7.0),
            ({"le": "0.1"}, 2.0),
            ({"le": "0.5"}, 5.0),
            ({"le": "2"}, 7.0),
        ]
    )
    drawn = drawing(
        panel("heatmap", {"format": "heatmap"}, fieldConfig={"defaults": {"unit": "s"}}), buckets
    )
    assert drawn.figure is not None
    trace = drawn.figure["data"][0]
    assert trace["y"] == ["≤ 100 ms", "≤ 500 ms", "≤ 2 s"]
    assert [cells[0] for cells in trace["z"]] == [2.0, 3.0, 2.0]


def test_a_heat_map_of_ranks_has_them_in_the_order_of_their_numbers() -> None:
    ranks = FakePrometheus(series=[({"rank": str(rank)}, float(rank)) for rank in (10, 2, 0)])
    drawn = drawing(panel("heatmap", {"legendFormat": "rank {{rank}}"}), ranks)
    assert drawn.figure is not None
    assert drawn.figure["data"][0]["y"] == ["rank 0", "rank 2", "rank 10"]


def test_a_state_timeline_has_one_bar_for_each_time_in_a_state() -> None:
    mapping = {"type": "value", "options": {"1": {"text": "up", "color": "green"}}}
    config = {"defaults": {"mappings": [mapping]}}
    drawn = drawing(
        panel("state-timeline", {"legendFormat": "{{link}}"}, fieldConfig=config),
        FakePrometheus(series=[({"link": "a"}, 1.0)]),
    )
    assert drawn.figure is not None
    assert drawn.legend[0].name == "up"
    assert drawn.figure["data"][0]["x"] == [5000.0]


def test_a_table_joins_queries_by_labels_and_is_sorted_as_the_panel_says() -> None:
    ranks = FakePrometheus(
        series=[({"rank": "2", "cluster": "c"}, 0.002), ({"rank": "10", "cluster": "c"}, 0.01)]
    )
    organize = {
        "excludeByName": {"cluster": True},
        "renameByName": {"Value #A": "late", "Value #B": "share"},
        "indexByName": {"rank": 0, "Value #A": 1, "Value #B": 2},
    }
    percent = {
        "matcher": {"id": "byName", "options": "share"},
        "properties": [{"id": "unit", "value": "percentunit"}],
    }
    item = panel(
        "table",
        {"instant": True},
        {"instant": True},
        transformations=[{"id": "merge"}, {"id": "organize", "options": organize}],
        options={"sortBy": [{"displayName": "late", "desc": True}]},
        fieldConfig={"defaults": {"unit": "s"}, "overrides": [percent]},
    )
    content = drawing(item, ranks).content
    assert [heading["text"] for heading in content["headings"]] == ["rank", "late", "share"]
    texts = [[cell["text"] for cell in row] for row in content["rows"]]
    assert texts == [["10", "10 ms", "1 %"], ["2", "2 ms", "0.2 %"]]


def test_a_stat_has_the_color_of_its_threshold() -> None:
    steps = [{"color": "green"}, {"color": "red", "value": 100}]
    config = {"defaults": {"unit": "short", "thresholds": {"mode": "absolute", "steps": steps}}}
    item = panel("stat", {}, fieldConfig=config, options={"colorMode": "value"})
    low = drawing(item, FakePrometheus(series=[({}, -500.0)])).content["stats"][0]
    high = drawing(item, FakePrometheus(series=[({}, 500.0)])).content["stats"][0]
    assert (low["color"], high["color"]) == ("#009e73", "#d55e00")


def test_a_bar_is_as_long_as_its_part_of_the_range() -> None:
    config = {"defaults": {"min": 0, "max": 4}}
    drawn = drawing(panel("bargauge", {"instant": True}, fieldConfig=config), FakePrometheus())
    assert drawn.content["bars"][0]["percent"] == 25


def test_an_empty_panel_says_why() -> None:
    found = answer(shipped_boards()[0].board, FakePrometheus(series=()))
    reasons = shipped_boards()[0].may_be_empty
    scene = Scene(window=WINDOW)
    for each in found.panels:
        text = draw(each, scene, reasons).content["text"]
        assert "No data in this window" in text
        assert reasons.get(each.panel.title, "") in text


def test_a_view_that_only_grafana_has_says_so() -> None:
    drawn = drawing(panel("geomap", {}), FakePrometheus())
    assert drawn.content["text"] == "Only Grafana draws the view 'geomap'."


def test_variables_are_filled_as_grafana_fills_them() -> None:
    variable = {
        "name": "node", "type": "query", "query": "label_values(up, node)", "multi": True,
        "includeAll": True,
    }  # fmt: skip
    board = board_of(panel("stat", {}), templating={"list": [variable]})
    fake = FakePrometheus(label_values={"node": ['a.b"c', "d"]})
    with fake.source() as source:
        wishes = {"node": ('a.b"c', "d")}
        several = choose(board, source, WINDOW, wishes, strict=True)
        one = choose(board, source, WINDOW, {"node": ("d",)}, strict=True)
    query = 'x{n=~"$node"}[$__rate_interval] ${node:csv} $1'
    assert fill(query, several, WINDOW.built_in) == ('x{n=~"(a\\\\.b\\"c|d)"}[20s] a.b"c,d $1')
    assert fill('x{n=~"${node}"}', one, WINDOW.built_in) == 'x{n=~"d"}'


def test_the_height_of_a_page_covers_its_grid() -> None:
    found = answer(shipped_boards()[0].board)
    rows = sum(
        max((x["row"] - 1 + x["panel"].height for x in section["panels"]), default=0)
        for section in page_content(found, OPTIONS)["sections"]
    )
    assert page_height(found) > 38 * rows


def test_the_address_on_the_page_has_no_password() -> None:
    with FakePrometheus().source() as source:
        assert source.address == "http://prometheus:9090"
    assert not re.search("secret", board_page(answer(shipped_boards()[0].board), OPTIONS))
