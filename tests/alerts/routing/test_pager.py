import json
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import httpx
import pytest

from lockstep_alerts.output import render, write_files
from lockstep_alerts.reading.model import Delivery
from lockstep_alerts.routing import read_deployment
from lockstep_alerts.routing.tree import OVERNIGHT, OVERNIGHT_FILE, local_seconds
from lockstep_alerts.shipped import runbooks_path, spec_path
from lockstep_alerts.spec import read_spec
from lockstep_alerts.stack.pager import (
    PAGES_FILE,
    PageBook,
    PagerServer,
    WebhookError,
    describe_alerts,
    read_webhook,
)

from ..cases.promtool import check_rules

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


DEPLOYMENT = """\
page: [{webhook: {url: "https://pages.example.org/"}}]
ticket: [{webhook: {url: "https://tickets.example.org/"}}]
office_hours: {time_zone: UTC, days: "monday:friday", hours: "09:00-17:00"}
"""
OWNERS = 'owners: [{webhook: {url: "https://owners.example.org/"}}]\n'
DAY, HOUR = 1440, 60
THURSDAY, FRIDAY, SATURDAY, MONDAY, TUESDAY = (DAY * number for number in (0, 1, 2, 4, 5))
"""Minutes since promtool's time 0, a Thursday."""
MORNING = 9 * HOUR + 2
NODE_TICKET = 'alertname="TrainAgentDown", severity="warning", node="n1"'
JOB_TICKET = 'alertname="TrainWorkloadUneven", severity="warning", job_id="j1"'
JOB_PAGE = 'alertname="JobNotProgressing", severity="critical", job_id="j1"'
OWNER_TICKET = f'{JOB_TICKET}, route="owners"'


def rules(folder: Path, deployment: str = DEPLOYMENT) -> dict[str, str]:
    path = folder / "deployment.yaml"
    path.write_text(deployment, encoding="utf-8")
    return render(read_spec(spec_path()), Delivery(), read_deployment(path))


Firing = tuple[str, int, int]
"""Labels of an alert, and the minutes from and to which it fires."""
NIGHTS: dict[str, tuple[list[Firing], dict[int, str | None]]] = {
    "at night": (
        [(NODE_TICKET, 2 * HOUR, 3 * HOUR)],
        {150: None, 539: None, MORNING: "TrainAgentDown", 575: None, FRIDAY + MORNING: None},
    ),
    "muted before its group's wait was over": (
        [(NODE_TICKET, 17 * HOUR - 1, 17 * HOUR + 3)],
        {17 * HOUR + 10: None, FRIDAY + MORNING: "TrainAgentDown"},
    ),
    "told in the afternoon": (
        [(NODE_TICKET, 16 * HOUR, 17 * HOUR + 20)],
        {FRIDAY + minute: None for minute in (MORNING, 9 * HOUR + 29)},
    ),
    "still there in the morning": (
        [(NODE_TICKET, 8 * HOUR, 11 * HOUR)],
        dict.fromkeys((MORNING, 9 * HOUR + 29)),
    ),
    "beside a page of its job": (
        [(JOB_TICKET, 2 * HOUR, 3 * HOUR), (JOB_PAGE, 2 * HOUR, 3 * HOUR)],
        {MORNING: "TrainWorkloadUneven"},
    ),
    "no owners": ([(OWNER_TICKET, 2 * HOUR, 3 * HOUR)], {MORNING: "TrainWorkloadUneven"}),
}
"""What fires, each in a cluster of its own, and the ticket that is told of it at some minutes."""
WEEKEND = {
    "at the weekend": (
        [(NODE_TICKET, SATURDAY + 600, SATURDAY + 660)],
        {FRIDAY + MORNING: None, MONDAY + MORNING: "TrainAgentDown", TUESDAY + MORNING: None},
    )
}


def check_tickets(
    folder: Path, cases: dict[str, tuple[list[Firing], dict[int, str | None]]], owners: str = ""
) -> None:
    """promtool finds the alert, with the name of the ticket, at just these minutes."""
    write_files(folder, rules(folder, DEPLOYMENT + owners))
    alert = f'ALERTS{{alertname="{OVERNIGHT}", alertstate="firing"'
    test = {
        "interval": "1m",
        "input_series": [
            {
                "series": f'ALERTS{{alertstate="firing", cluster="{name}", {labels}}}',
                "values": f"_x{begin} 1x{end - begin - 1} stale",
            }
            for name, (alerts, _) in cases.items()
            for labels, begin, end in alerts
        ],
        "promql_expr_test": [
            {
                "expr": f'count by (ticket) ({alert}, cluster="{name}"}})',
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": f'{{ticket="{ticket}"}}', "value": 1}] if ticket else [],
            }
            for name, (_, expected) in cases.items()
            for minute, ticket in expected.items()
        ],
    }
    content = {"rule_files": [OVERNIGHT_FILE], "evaluation_interval": "1m", "tests": [test]}
    check_rules(folder, content)


@pytest.mark.promtool
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(NIGHTS, id="nights"),
        # promtool takes a minute for the five days.
        pytest.param(WEEKEND, id="weekend", marks=[pytest.mark.release, pytest.mark.timeout(600)]),
    ],
)
def test_a_ticket_that_nobody_heard_of_is_told_in_the_morning(
    tmp_path: Path, cases: dict[str, tuple[list[Firing], dict[int, str | None]]]
) -> None:
    check_tickets(tmp_path, cases)


@pytest.mark.promtool
def test_what_owners_hear_at_any_hour_is_not_told_again(tmp_path: Path) -> None:
    alerts = [(OWNER_TICKET, 2 * HOUR, 3 * HOUR)]
    check_tickets(tmp_path, {"owners": (alerts, {MORNING: None})}, OWNERS)


def test_where_tickets_are_told_at_any_hour_there_is_no_such_rule(tmp_path: Path) -> None:
    always = DEPLOYMENT.replace("monday:friday", "sunday:saturday").replace(
        "09:00-17:00", "00:00-24:00"
    )
    without = DEPLOYMENT.partition("office_hours")[0]
    assert OVERNIGHT_FILE in rules(tmp_path)
    assert OVERNIGHT_FILE not in rules(tmp_path, always)
    assert OVERNIGHT_FILE not in rules(tmp_path, without)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "UTC"])
def test_the_local_time_of_the_rules_is_that_of_the_zone(zone: str) -> None:
    expression = local_seconds(zone)
    found = re.fullmatch(
        r"time\(\) \+ (-?\d+)((?: \+ -?\d+ \* \(time\(\) >= bool \d+\))*)", expression
    )
    assert found
    changes = re.findall(r"(-?\d+) \* \(time\(\) >= bool (\d+)\)", found[2])
    for year, month, day in ((2026, 1, 5), (2026, 7, 1), (2027, 3, 28), (2031, 10, 26)):
        for hour in range(24):
            moment = datetime(year, month, day, hour, 30, tzinfo=UTC)
            seconds = moment.timestamp()
            later = sum(int(step) for step, since in changes if seconds >= int(since))
            here = moment.astimezone(ZoneInfo(zone)).replace(tzinfo=UTC)
            assert seconds + int(found[1]) + later == here.timestamp()
