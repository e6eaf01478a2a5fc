import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from lockstep_alerts.shipped import runbooks_path
from lockstep_alerts.stack.pager import (
    PAGES_FILE,
    PageBook,
    PagerServer,
    WebhookError,
    describe_alerts,
    read_webhook,
)

NOW = datetime(2026, 11, 20, 19, 0, tzinfo=UTC)
BODY = {
    "status": "firing",
    "groupLabels": {"cluster": "c1", "job_id": "j1"},
    "alerts": [
        {
            "status": "firing",
            "labels": {"alertname": "JobNotProgressing", "job_id": "j1"},
            "annotations": {"summary": "Job j1 stands\x1b[31m still", "runbook_url": "http://r"},
            "startsAt": "2026-11-20T18:59:00Z",
            "endsAt": "0001-01-01T00:00:00Z",
        }
    ],
}


def test_a_page_keeps_what_alertmanager_told() -> None:
    page = read_webhook(json.dumps(BODY).encode(), "pager", NOW)
    assert page.time == "2026-11-20T19:00:00.000+00:00"
    assert page.group_labels == {"cluster": "c1", "job_id": "j1"}
    assert page.alerts[0].labels["alertname"] == "JobNotProgressing"
    assert page.alerts[0].ends_at is None


def test_people_read_who_and_what_without_control_characters() -> None:
    text = describe_alerts(read_webhook(json.dumps(BODY).encode(), "pager", NOW))
    assert "PAGE firing cluster=c1 job_id=j1" in text
    assert "firing JobNotProgressing: Job j1 stands [31m still" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "truncated"),
        (b"[" * 100_000, "what Alertmanager sends"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"status": "firing", "groupLabels": {}}', "required field `alerts`"),
        (b'{"status": 1, "groupLabels": {}, "alerts": []}', r"got `int` - at `\$.status`"),
        (b'{"status": "", "groupLabels": {"a": 1}, "alerts": []}', r"at `\$.groupLabels\[...\]`"),
        (b'{"status": "", "groupLabels": {}, "alerts": [3]}', r"at `\$.alerts\[0\]`"),
    ],
)
def test_a_body_of_another_shape_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(WebhookError, match=message):
        read_webhook(body, "pager", NOW)


@pytest.fixture
def pager(tmp_path: Path) -> Iterator[PagerServer]:
    with PagerServer(0, PageBook(tmp_path), runbooks_path(), clock=lambda: NOW) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def client(pager: PagerServer) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{pager.server_port}", trust_env=False)


@pytest.mark.server
def test_every_page_is_one_line_and_can_be_asked_for(pager: PagerServer, tmp_path: Path) -> None:
    with client(pager) as http_client:
        assert http_client.post("/pager", json=BODY).status_code == 200
        assert http_client.post("/tickets", json=BODY).status_code == 200
        pages = http_client.get("/pages").json()
    lines = (tmp_path / PAGES_FILE).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == pages
    assert [page["receiver"] for page in pages] == ["pager", "tickets"]


@pytest.mark.server
def test_runbooks_are_served_by_name_and_nothing_else_is(pager: PagerServer) -> None:
    with client(pager) as http_client:
        for name in ("JobNotProgressing", "JobNotProgressing.md"):
            assert "## Mitigation" in http_client.get(f"/runbooks/{name}").text
        for path in ("/runbooks/..%2fslos.yaml", "/runbooks//etc/passwd", "/runbooks/", "/x"):
            assert http_client.get(path).status_code == 404


@pytest.mark.server
def test_a_torn_line_hides_no_page(pager: PagerServer, tmp_path: Path) -> None:
    with client(pager) as http_client:
        (tmp_path / PAGES_FILE).write_bytes(b'{"time": "20\n\xff\n')
        assert http_client.post("/pager", json=BODY).status_code == 200
        assert len(http_client.get("/pages").json()) == 1


def test_wrong_posts_are_refused_and_leave_nothing(pager: PagerServer, tmp_path: Path) -> None:
    with client(pager) as http_client:
        assert http_client.post("/pager", content=b"{").status_code == 400
        assert http_client.post("/else", json=BODY).status_code == 404
    assert not (tmp_path / PAGES_FILE).exists()
