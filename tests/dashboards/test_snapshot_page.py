"""A snapshot's page: the board's layout and values, no network, and nothing of it is believed."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from itertools import combinations

import plotly.graph_objects as go
import pytest

from lockstep_dashboards.boards import BOARDS
from lockstep_dashboards.snapshot.page import (
    PageOptions,
    board_page,
    page_content,
    page_height,
)
from lockstep_dashboards.snapshot.shipped import KnownBoard, shipped_boards
from lockstep_dashboards.snapshot.variables import choose, fill

from .board_answers import WINDOW, answer, board_of, panel
from .fake_prometheus import FakePrometheus

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
            assert len(entry["drawing"].figure["layout"]["shapes"]) >= 2


@EVERY_BOARD
def test_no_two_panels_share_a_cell_of_the_grid(item: KnownBoard) -> None:
    for section in page_content(answer(item.board), OPTIONS)["sections"]:
        cells = [
            (x["panel"].x, x["panel"].width, x["row"], x["panel"].height) for x in section["panels"]
        ]
        assert all(x + width <= 24 for x, width, _, _ in cells)
        for (x, width, row, height), (x2, width2, row2, height2) in combinations(cells, 2):
            apart = x + width <= x2 or x2 + width2 <= x
            assert apart or row + height <= row2 or row2 + height2 <= row


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
        single = choose(board, source, WINDOW, {"node": ("d",)}, strict=True)
    query = 'x{n=~"$node"}[$__rate_interval] ${node:csv} $1'
    assert fill(query, several, WINDOW.built_in) == ('x{n=~"(a\\\\.b\\"c|d)"}[20s] a.b"c,d $1')
    assert fill('x{n=~"${node}"}', single, WINDOW.built_in) == 'x{n=~"d"}'


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
