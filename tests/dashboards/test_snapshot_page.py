"""A snapshot's page: the board's layout and values, no network, and nothing of it is believed."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import httpx
import pytest

from lockstep_catalogue.labels import CLUSTER
from lockstep_dashboards.layout import BOARDS
from lockstep_dashboards.links import JOB_BOARD
from lockstep_dashboards.panel import Annotation, Board, Query, Variable, View
from lockstep_dashboards.scope import Scope
from lockstep_dashboards.snapshot.page import (
    PageOptions,
    board_page,
    page_content,
)
from lockstep_dashboards.snapshot.views import Drawing, draw

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
