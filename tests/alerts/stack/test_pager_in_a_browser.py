"""The pager's page in Chromium: what fires comes before what ended, and leads to its runbook."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from page_checks import THEMES, WIDTHS, check_page, links, open_page, serious

from lockstep_alerts.shipped import runbooks_path
from lockstep_alerts.stack.pager import PageBook, PagerServer, read_webhook

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]


def webhook(alert: str, status: str, **labels: str) -> bytes:
    sent = {
        "status": status,
        "labels": {"alertname": alert, **labels},
        "annotations": {
            "summary": "Rank 35 holds back job pretrain-70b",
            "runbook_url": f"http://pager.example/runbooks/{alert}.md",
        },
        "startsAt": "2026-11-23T10:00:00Z",
        "endsAt": "0001-01-01T00:00:00Z" if status == "firing" else "2026-11-23T11:00:00Z",
    }
    return msgspec.json.encode({"status": status, "groupLabels": {}, "alerts": [sent]})


@pytest.fixture(scope="module")
def pager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a pager with an alert that fires, a ticket, and one that ended."""
    book = PageBook(tmp_path_factory.mktemp("pager"))
    labels_of_rank = {
        "job_id": "pretrain-70b",
        "node": "node-0004",
        "rank": "35",
        "phase": "backward",
    }
    for receiver, body in (
        ("pager", webhook("JobNotProgressing", "firing", job_id="vision-moe")),
        ("tickets", webhook("TrainPortFault", "firing", node="n" * 60)),
        ("pager", webhook("JobLosing", "firing", **labels_of_rank)),
        ("pager", webhook("JobNotProgressing", "resolved", job_id="vision-moe")),
    ):
        book.add(read_webhook(body, receiver, datetime.now(UTC)))
    with PagerServer(0, book, runbooks_path()) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_pager_shows_what_fires_before_what_ended(browser: Any, pager: str, width: int) -> None:
    open_page(browser, pager, width)
    check_page(browser, width, own=pager)
    texts = [
        browser.execute_script(f"return document.getElementById('{name}').innerText")
        for name in ("summary", "firing", "resolved")
    ]
    assert texts[0].startswith("1 page and 1 ticket fire now")
    assert texts[1].index("JobLosing") < texts[1].index("TrainPortFault")
    assert "node node-0004, rank 35, phase backward" in texts[1]
    assert "since 2026-11-23 10:00:00 UTC, until 2026-11-23 11:00:00 UTC" in texts[2]
    assert "JobNotProgressing" not in texts[1]
    for url in links(browser):
        assert httpx.get(pager + urlsplit(url).path, trust_env=False).status_code == 200


@pytest.mark.parametrize("theme", THEMES)
def test_axe_core_finds_nothing_bad_in_either_theme(browser: Any, pager: str, theme: str) -> None:
    open_page(browser, pager, 1440, theme)
    is_dark = browser.execute_script("return matchMedia('(prefers-color-scheme: dark)').matches")
    assert is_dark == (theme == "dark")
    assert serious(browser) == []
