"""A snapshot's page: the board's layout and values, no network, and nothing of it is believed."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest

from lockstep_catalogue.labels import CLUSTER, RANK
from lockstep_dashboards.layout import BOARDS
from lockstep_dashboards.links import JOB_BOARD
from lockstep_dashboards.panel import (
    Annotation,
    Board,
    Panel,
    Query,
    Threshold,
    ValueText,
    Variable,
    View,
)
from lockstep_dashboards.scope import Scope
from lockstep_dashboards.snapshot.page import PageOptions, board_page, page_content
from lockstep_dashboards.snapshot.views import Drawing, draw, scale_of, series_styles, value_text
from lockstep_records.text.durations import parse_time

from .board_answers import SCOPE, answer, board_of, panel
from .fake_prometheus import FakePrometheus

OPTIONS = PageOptions(address="http://prometheus:9090")
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"{{7*7}}%{y}"
EVERY_BOARD = pytest.mark.parametrize("board", BOARDS.values(), ids=lambda board: board.uid)


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


@EVERY_BOARD
def test_every_panel_of_a_board_is_drawn(board: Board) -> None:
    found = answer(board, FakePrometheus(events=[{"alertname": "A", "attempt": "1"}]))
    content = page_content(found, OPTIONS)
    drawn = [entry for section in content["sections"] for entry in section["panels"]]
    assert len(drawn) == len(board.panels)
    for entry in drawn:
        assert entry["drawing"].view != "message", entry["title"]
    # Annotations are on every axis of time.
    assert len(json.loads(content["figures"])["events"]) >= 2


@EVERY_BOARD
def test_a_page_is_smaller_than_a_megabyte(board: Board) -> None:
    many = [({"rank": str(rank), "job_id": "demo", "le": str(rank)}, 0.1) for rank in range(8)]
    assert len(board_page(answer(board, FakePrometheus(series=many)), OPTIONS)) < 1_000_000


def test_a_page_asks_no_network_and_runs_its_own_scripts_only() -> None:
    page = board_page(answer(BOARDS["executive.json"]), OPTIONS)
    elements = Elements(page)
    policy = next(x for tag, x in elements.tags if x.get("http-equiv"))["content"] or ""
    assert "default-src 'none'" in policy
    assert "connect-src" not in policy
    [script] = [script for script in elements.scripts if not script.startswith("{")]
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
    texts = {"title": HOSTILE, "description": HOSTILE, "unit": HOSTILE}
    legend = Query(expression="up", legend="{{rank}}")
    variable = Variable(label=CLUSTER, title="Cluster", source="up")
    alerts = Annotation(title=HOSTILE, expression="ALERTS", heading=HOSTILE, color="#d55e00")
    board = board_of(
        *(panel(view, legend, **texts) for view in View),
        title=HOSTILE,
        variables=(variable,),
        annotations=(alerts,),
    )
    elements = Elements(board_page(answer(board, hostile), OPTIONS))
    assert len(elements.scripts) == 2
    assert not any(tag == "img" for tag, _ in elements.tags)
    for _, attributes in elements.tags:
        assert not any(name.startswith("on") for name in attributes)
        assert "javascript" not in (attributes.get("href") or "")
        assert "alert" not in (attributes.get("style") or "")
    data = next(script for script in elements.scripts if script.startswith("{"))
    assert "<" not in data
    assert "</script>" not in data


def test_variables_are_filled_as_grafana_fills_them() -> None:
    several = replace(SCOPE, chosen={"node": ('a.b"c', "d")}, offered={"node": ()})
    single = replace(SCOPE, chosen={"node": ("d",)}, offered={"node": ()})
    query = 'x{n=~"$node"}[$__rate_interval] $1'
    assert several.fill(query) == 'x{n=~"(a\\\\.b\\"c|d)"}[20s] $1'
    assert single.fill('x{n=~"${node}", m="$node"}') == 'x{n=~"d", m="d"}'
    assert Scope.fill(single, 'x{n=~"$node-.*"}') == 'x{n=~"d-.*"}'
    # A value that looks like a variable, or like the end of a matcher, stays a value.
    nested = replace(single, chosen={"node": ('$job", m="',), "job": ('"} or up{',)})
    assert nested.fill('x{n="$node"}') == 'x{n="$job\\", m=\\""}'
    assert several.fill_text("on ${node}") == 'on a.b"c, d'


def test_cells_of_a_file_link_to_the_boards_where_a_base_is_given() -> None:
    found = answer(BOARDS["on-call.json"], FakePrometheus(series=[({"job_id": "a b&c"}, 1.0)]))
    linked = board_page(
        found,
        replace(OPTIONS, bases={"boards": "https://grafana.example/x", "ledger": "https://l"}),
    )
    address = f"https://grafana.example/x/d/{JOB_BOARD}?from=1795384000000&amp;to=1795384800000"
    assert f'href="{address}&amp;var-job_id=a%20b%26c"' in linked
    assert '<a class="more" href="https://l/jobs/a%20b%26c">ledger</a>' in linked
    assert "/d/" not in board_page(found, OPTIONS)


def test_a_firing_alert_leads_to_its_runbook_and_says_what_it_means() -> None:
    firing = [{"alertname": "JobLosing", "summary": "JobLosing", "rank": "3"}]
    found = answer(BOARDS["on-call.json"], FakePrometheus(events=firing))
    page = board_page(found, replace(OPTIONS, bases={"runbooks": "https://r/x"}))
    assert '<a href="https://r/x/JobLosing.md">JobLosing</a>' in page
    assert ">The job loses time</td>" in page


def test_a_column_that_no_row_fills_is_left_out_and_a_table_without_rows_says_so() -> None:
    class NoPlaces(FakePrometheus):
        def answer(self, request: httpx.Request) -> httpx.Response:
            self.events = () if b"%3E+1&" in request.read() else ({"alertname": "A"},)
            return super().answer(request)

    def firing(fake: FakePrometheus) -> Drawing:
        found = answer(BOARDS["on-call.json"], fake)
        [table] = [x for x in found.panels if x.panel.title == "Firing alerts"]
        return draw(table, {})

    headings = [x["text"] for x in firing(NoPlaces()).content["headings"]]
    assert headings == ["alertname", "severity", "since"]
    assert firing(FakePrometheus()).content == {"text": "nothing fires"}


def test_the_address_on_the_page_has_no_password() -> None:
    with FakePrometheus().source() as source:
        assert source.address == "http://prometheus:9090"
    assert not re.search("secret", board_page(answer(BOARDS["executive.json"]), OPTIONS))


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


NOW = 1_795_384_800.0  # 2026-11-22 22:00:00 UTC


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.00125, "s", "1.25 ms"),
        (0.0, "s", "0 s"),
        (59.99, "s", "59.99 s"),
        (204.0, "s", "3.4 min"),
        (86_400 * 10, "s", "10 days"),
        (-0.002, "s", "\N{MINUS SIGN}2 ms"),
        (3 * 1024**3, "bytes", "3 GiB"),
        (1e9, "Bps", "1 GB/s"),
        (0.9725, "percentunit", "97.25 %"),
        (1234, "short", "1.234 K"),
        (999.9, "short", "999.9"),
        (2.5e6, "cps", "2.5 Mil c/s"),
        (0.00002, "short", "0.00002"),
        (450, "watt", "450 W"),
        (61.5, "celsius", "61.5 °C"),
        (1980e6, "hertz", "1.98 GHz"),
        (7, "a unit nobody knows", "7 a unit nobody knows"),
    ],
)
def test_a_value_has_the_unit_that_grafana_gives_it(value: float, unit: str, text: str) -> None:
    assert value_text(value, unit) == text
    assert value_text(0.5, "percentunit", 2) == "50.00 %"


def test_the_scale_of_an_axis_follows_its_largest_value() -> None:
    scale = scale_of("s", 0.25)
    assert (scale.divisor, scale.suffix) == (1e-3, " ms")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("now", NOW),
        ("-15m", NOW - 900),
        ("now-2h", NOW - 7200),
        ("2026-11-22T21:40:00Z", NOW - 1200),
        ("2026-11-22T21:40:00", NOW - 1200),
        ("2026-11-22T22:40:00+01:00", NOW - 1200),
        ("1795384800", NOW),
        ("1795384800123", NOW + 0.123),
    ],
)
def test_a_time_is_read_as_people_write_it(text: str, seconds: float) -> None:
    assert parse_time(text, NOW) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "yesterday", "-15", "15m", "now+1h", "12", "2026-13-01", "-1y"]
)
def test_what_is_no_time_is_refused_with_the_spellings_that_are(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time; write now, .* -15m"):
        parse_time(text, NOW)


def scope(range_seconds: float) -> Scope:
    return Scope(end=NOW, range_seconds=range_seconds, scrape_seconds=15.0, max_points=240)


def test_the_points_of_a_window_are_whole_steps_and_at_least_a_scrape_apart() -> None:
    window = scope(907)
    assert window.step_seconds == 15
    assert window.start % 15 == 0
    assert window.start <= NOW - 907
    assert window.start + (window.num_points - 1) * 15 <= NOW
    assert window.built_in["__rate_interval"] == "60s"
    assert scope(30 * 86_400).num_points <= 242
    assert scope(30 * 86_400).built_in["__rate_interval"] == "10815s"


def test_series_stay_apart_when_the_colors_are_used_up() -> None:
    assert len(set(series_styles(27))) == 27
