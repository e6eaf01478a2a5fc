"""Each view of a snapshot draws what Grafana draws: scales, buckets, joins, thresholds, reasons."""

import re
from typing import Any

import httpx

from lockstep_dashboards.snapshot.page import PageOptions, board_page, draw
from lockstep_dashboards.snapshot.shipped import shipped_boards
from lockstep_dashboards.snapshot.views.drawing import Drawing, Scene

from .board_answers import WINDOW, answer, board_of, panel
from .fake_prometheus import FakePrometheus


def drawing(item: dict[str, Any], prometheus: FakePrometheus) -> Drawing:
    found = answer(board_of(item), prometheus)
    return draw(found.panels[0], Scene(window=WINDOW, events=found.events), {})


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


def test_a_cell_that_no_query_fills_is_empty() -> None:
    class OneOfTwo(FakePrometheus):
        def answer(self, request: httpx.Request) -> httpx.Response:
            rank = "1" if b"query=first" in request.read() else "2"
            self.series = [({"rank": rank}, 1.0)]
            return super().answer(request)

    targets = [{"instant": True, "expr": name} for name in ("first", "second")]
    found = answer(board_of(panel("table", *targets)), OneOfTwo())
    rows = draw(found.panels[0], Scene(window=WINDOW), {}).content["rows"]
    assert [[cell["text"] for cell in row] for row in rows] == [["1", "1", ""], ["2", "", "1"]]
    assert board_page(found, PageOptions(address="")).count("<td") == 6


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


def test_alerts_that_overlap_are_one_region_and_equal_ones_one_line_of_the_list() -> None:
    names = [{"alertname": "A", "node": str(n)} for n in range(20)] + [{"alertname": "B"}]
    annotation = {"name": "Alerts", "expr": "ALERTS", "titleFormat": "{{alertname}}"}
    board = board_of(panel("timeseries", {}), annotations={"list": [annotation]})
    found = answer(board, FakePrometheus(events=names))
    drawn = draw(found.panels[0], Scene(window=WINDOW, events=found.events), {})
    assert drawn.figure is not None
    kinds = [shape["type"] for shape in drawn.figure["layout"]["shapes"]]
    assert sorted(kinds) == ["line", "rect"]
    page = board_page(found, PageOptions(address=""))
    assert re.findall(r"</b> (A|B)\b", page) == ["A", "B"]
