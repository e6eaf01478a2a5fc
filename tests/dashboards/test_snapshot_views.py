"""Each view of a snapshot draws what Grafana draws: buckets, joins, thresholds, reasons."""

import re
from typing import Any

import httpx

from lockstep_catalogue.labels import RANK
from lockstep_dashboards.layout import BOARDS
from lockstep_dashboards.panel import Annotation, Panel, Query, Threshold, ValueText, View
from lockstep_dashboards.snapshot.page import PageOptions, board_page
from lockstep_dashboards.snapshot.views import Drawing, draw

from .board_answers import answer, board_of, panel
from .fake_prometheus import FakePrometheus

LIMIT = (Threshold(color="#009e73"), Threshold(color="#d55e00", at=4))


def drawing(item: Panel, prometheus: FakePrometheus) -> Drawing:
    return draw(answer(board_of(item), prometheus).panels[0], {})


def figure(item: Panel, prometheus: FakePrometheus) -> dict[str, Any]:
    drawn = drawing(item, prometheus).figure
    assert drawn is not None
    return drawn


def legend(text: str) -> Query:
    return Query(expression="up", legend=text)


def test_a_stack_is_filled_and_has_its_limits() -> None:
    two = FakePrometheus(series=[({"state": "a"}, 1.0), ({"state": "b"}, 2.0)])
    item = panel(View.TIME_SERIES, legend("{{state}}"), stacked=True, thresholds=LIMIT)
    drawn = figure(item, two)
    assert (drawn["stacked"], drawn["limits"]) == (True, [[4, "#d55e00"]])
    assert [series["name"] for series in drawn["series"]] == ["a", "b"]
    assert drawn["series"][1]["values"][:2] == [2.0, 3.0]


def test_a_heat_map_of_a_histogram_shows_what_falls_into_each_bucket_alone() -> None:
    buckets = FakePrometheus(
        series=[
            ({"le": "+Inf"}, 7.0),
            ({"le": "0.1"}, 2.0),
            ({"le": "0.5"}, 5.0),
            ({"le": "2"}, 7.0),
        ]
    )
    drawn = figure(panel(View.HEAT_MAP, legend("{{le}}"), unit="s"), buckets)
    assert drawn["rows"] == ["≤ 2 s", "≤ 500 ms", "≤ 100 ms"]
    assert [cells[0] for cells in drawn["values"]] == [2.0, 3.0, 2.0]


def test_a_heat_map_of_ranks_has_them_in_the_order_of_their_numbers() -> None:
    ranks = FakePrometheus(series=[({"rank": str(rank)}, float(rank)) for rank in (10, 2, 0)])
    drawn = figure(panel(View.HEAT_MAP, legend("rank {{rank}}")), ranks)
    assert drawn["rows"] == ["rank 0", "rank 2", "rank 10"]


def test_a_heat_map_with_a_scale_of_its_own_keeps_it_whatever_the_data() -> None:
    small = FakePrometheus(series=[({"rank": "0"}, 0.001)])
    item = panel(View.HEAT_MAP, minimum=0, maximum=0.25)
    assert (figure(item, small)["min"], figure(item, small)["max"]) == (0, 0.25)


def test_a_state_timeline_has_one_bar_for_each_time_in_a_state() -> None:
    texts = (ValueText(value=1, text="up", color="#009e73"),)
    drawn = drawing(
        panel(View.STATE_TIMELINE, legend("{{link}}"), texts=texts),
        FakePrometheus(series=[({"link": "a"}, 1.0)]),
    )
    assert drawn.figure is not None
    assert drawn.legend[0].name == "up"
    assert drawn.figure["states"]["1"] == ("up", "#009e73")
    assert drawn.figure["bars"][0][0] == [1.0, 0, 0]


def test_a_table_joins_queries_by_labels_and_is_sorted_as_the_panel_says() -> None:
    ranks = FakePrometheus(
        series=[({"rank": "2", "cluster": "c"}, 0.002), ({"rank": "10", "cluster": "c"}, 0.01)]
    )
    item = panel(
        View.TABLE,
        Query(expression="up", heading="late"),
        Query(expression="up", heading="share", unit="percentunit"),
        unit="s",
        columns=(RANK,),
        sort="late",
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

    queries = [Query(expression=name) for name in ("first", "second")]
    found = answer(board_of(panel(View.TABLE, *queries)), OneOfTwo())
    rows = draw(found.panels[0], {}).content["rows"]
    assert [[cell["text"] for cell in row] for row in rows] == [["1", "1", ""], ["2", "", "1"]]
    assert board_page(found, PageOptions(address="")).count("<td") == 6


def test_a_stat_has_the_color_of_its_threshold() -> None:
    item = panel(View.STAT, thresholds=LIMIT)
    low = drawing(item, FakePrometheus(series=[({}, -500.0)])).content["stats"][0]
    high = drawing(item, FakePrometheus(series=[({}, 500.0)])).content["stats"][0]
    assert (low["color"], high["color"]) == ("#009e73", "#d55e00")


def test_a_bar_is_as_long_as_its_part_of_the_range() -> None:
    drawn = drawing(panel(View.BAR_GAUGE, minimum=0, maximum=4), FakePrometheus())
    assert drawn.content["bars"][0]["percent"] == 25


def test_an_empty_panel_says_why() -> None:
    for found in answer(BOARDS["executive.json"], FakePrometheus(series=())).panels:
        text = draw(found, {}).content["text"]
        assert text == found.panel.no_value or "No data in this window" in text
        assert found.panel.no_value or found.panel.may_be_empty in text


def test_equal_alerts_are_one_line_of_the_list() -> None:
    names = [{"alertname": "A", "node": str(n)} for n in range(20)] + [{"alertname": "B"}]
    alerts = Annotation(
        title="Alerts", expression="ALERTS", heading="{{alertname}}", color="#d55e00"
    )
    board = board_of(panel(View.TIME_SERIES), annotations=(alerts,))
    page = board_page(answer(board, FakePrometheus(events=names)), PageOptions(address=""))
    assert re.findall(r"</b> (A|B)\b", page) == ["A", "B"]
    assert "\N{MULTIPLICATION SIGN}20" in page
