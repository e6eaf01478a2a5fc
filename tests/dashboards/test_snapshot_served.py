"""Boards that are served: one set of queries a refresh, links to other boards, trouble in words."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from click.testing import CliRunner
from servers import serving

from lockstep_dashboards.command import dashboards
from lockstep_dashboards.layout import SHIPPED
from lockstep_dashboards.panel import Board, Panel, Query, Row, View
from lockstep_dashboards.snapshot.server import BoardServer, LiveBoards

from .board_answers import board_of, panel
from .fake_prometheus import FakePrometheus


@contextmanager
def served(
    prometheus: FakePrometheus, board: Board | None = None, **options: Any
) -> Iterator[httpx.Client]:
    with prometheus.source() as source:
        settings = {"refresh_seconds": 60.0, "simultaneous": 2} | options
        live = LiveBoards({"own": board} if board else SHIPPED, source, **settings)
        with serving(BoardServer(("127.0.0.1", 0), live)) as server:
            url = f"http://127.0.0.1:{server.server_port}"
            with httpx.Client(base_url=url, trust_env=False) as client:
                yield client


def stat(expression: str) -> Panel:
    return panel(View.STAT, Query(expression=expression))


def test_the_index_leads_to_every_board() -> None:
    with served(FakePrometheus()) as client:
        index = client.get("/").text
        for board in SHIPPED.values():
            assert f'href="/d/{board.uid}"' in index
            assert client.get(f"/d/{board.uid}").status_code == 200


def test_readers_of_one_address_share_one_set_of_queries() -> None:
    fake, item = FakePrometheus(), board_of(stat("first"))
    with served(fake, item) as client:
        with ThreadPoolExecutor(4) as pool:
            pages = list(pool.map(client.get, ["/d/own?from=now-5m"] * 4))
        client.get("/d/own?from=now-5m&part=panels")
    assert {page.status_code for page in pages} == {200}
    assert fake.queries == ["first"]


def test_after_a_refresh_prometheus_is_asked_again() -> None:
    fake, now = FakePrometheus(), [1_795_384_800.0]
    with served(fake, clock=lambda: now[0]) as client:
        client.get("/d/lockstep-job")
        before = len(fake.queries)
        now[0] += 61
        client.get("/d/lockstep-job")
    assert len(fake.queries) == 2 * before


@dataclass
class CountingPrometheus(FakePrometheus):
    """Counts how many queries it answers at a time."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    running: int = 0
    most: int = 0

    def answer(self, request: httpx.Request) -> httpx.Response:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(0.005)
        response = super().answer(request)
        with self.lock:
            self.running -= 1
        return response


def test_many_readers_of_many_addresses_ask_a_bounded_number_of_queries_at_a_time() -> None:
    counting = CountingPrometheus()
    item = board_of(*(stat(f"up{n}") for n in range(8)))
    with served(counting, item, simultaneous=1) as client:
        paths = [f"/d/own?from=now-{n}m" for n in range(2, 8)]
        with ThreadPoolExecutor(6) as pool:
            assert {page.status_code for page in pool.map(client.get, paths)} == {200}
    assert 1 < counting.most <= 4


def test_a_collapsed_row_asks_nothing_until_it_is_opened() -> None:
    rows = (
        Row(title="", panels=(stat("first"),)),
        Row(title="Details", panels=(stat("detail"),), collapsed=True),
    )
    fake = FakePrometheus()
    with served(fake, board_of(rows=rows)) as client:
        closed = client.get("/d/own").text
        assert fake.queries == ["first"]
        assert "open=all" in closed
        client.get("/d/own?open=all")
    assert "detail" in fake.queries


def away(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("connection refused", request=request)


def test_a_prometheus_that_is_away_is_on_the_page_and_is_not_asked_for_each_reader() -> None:
    num_asked = 0

    class Away(FakePrometheus):
        def answer(self, request: httpx.Request) -> httpx.Response:
            nonlocal num_asked
            num_asked += 1
            return away(request)

    with served(Away()) as client:
        page = client.get("/d/lockstep-job")
        client.get("/d/lockstep-job")
    assert page.status_code == 502
    assert "cannot be queried (connection refused)" in page.text
    assert 'http-equiv="refresh"' in page.text
    assert num_asked == 1


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/d/lockstep-jbo", 404, "Board &#39;lockstep-jbo&#39; does not exist; the boards are"),
        ("/nothing", 404, "There are / and /d/BOARD"),
        ("/d/lockstep-job?from=soon", 400, "&#39;soon&#39; is not a time"),
        ("/d/lockstep-job?" + "&".join(f"x{n}=1" for n in range(100)), 400, "fields"),
    ],
)
def test_a_wrong_address_is_answered_with_a_sentence(path: str, status: int, sentence: str) -> None:
    with served(FakePrometheus()) as client:
        page = client.get(path)
    assert page.status_code == status
    assert sentence in page.text


def test_a_job_that_nobody_knows_and_a_window_without_data_are_on_the_page() -> None:
    with served(FakePrometheus()) as client:
        page = client.get("/d/lockstep-job?var-job_id=gone").text
    assert "In this window no series has the job_id gone; there is demo." in page
    with served(FakePrometheus(series=())) as client:
        assert "No panel has data in this window" in client.get("/d/lockstep-job").text


def test_what_is_hostile_in_an_address_stays_text() -> None:
    hostile = quote('"><script>alert(1)</script>')
    with served(FakePrometheus()) as client:
        page = client.get(f"/d/lockstep-job?var-job_id={hostile}&from=now-5m&to={hostile}")
        board = client.get(f"/d/lockstep-job?var-job_id={hostile}")
    for answer in (page, board):
        assert "<script>alert" not in answer.text
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_the_variables_are_drop_downs_and_the_window_is_kept() -> None:
    with served(FakePrometheus()) as client:
        page = client.get("/d/lockstep-job?from=now-5m").text
    assert '<select name="var-job_id">' in page
    assert '<option value="now-5m" selected>' in page
    assert 'data-refresh="60.0"' in page


def test_a_link_of_a_table_leads_to_the_other_board_with_time_and_variables() -> None:
    fake = FakePrometheus(series=[({"job_id": "a b&c"}, 1.0)])
    with served(fake, clock=lambda: 1_795_384_800.0) as client:
        address = "/d/lockstep-on-call?from=1795384500000&to=1795384800000&var-cluster=c"
        page = client.get(address).text
    expected = "from=1795384500000&amp;to=1795384800000&amp;var-cluster=c"
    assert f'href="/d/lockstep-job?{expected}&amp;var-job_id=a%20b%26c"' in page


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--listen", "9441"], "is not HOST:PORT"),
        (["--prometheus", "localhost:9090"], "must begin with http:// or https://"),
        (["--refresh", "0s"], "is not in the range"),
    ],
)
def test_bad_input_to_serve_is_refused_in_one_sentence(arguments: list[str], sentence: str) -> None:
    line = ["serve", "--prometheus", "http://127.0.0.1:1", *arguments]
    done = CliRunner().invoke(dashboards, line)
    assert done.exit_code == 2
    assert sentence in " ".join(done.output.split())


def test_a_port_that_is_taken_is_named() -> None:
    with served(FakePrometheus()) as client:
        listen = f"127.0.0.1:{client.base_url.port}"
        line = ["serve", "--prometheus", "http://127.0.0.1:1", "--listen", listen]
        done = CliRunner().invoke(dashboards, line)
    assert done.exit_code == 2
    assert f"--listen {listen}: Address already in use" in done.output
