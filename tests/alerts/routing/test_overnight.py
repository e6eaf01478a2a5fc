"""A ticket that nobody was told of at night is told in the morning, once."""

import re
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from lockstep_alerts.output import render, write_files
from lockstep_alerts.reading.model import Delivery
from lockstep_alerts.routing import read_deployment
from lockstep_alerts.routing.overnight import OVERNIGHT, OVERNIGHT_FILE, local_seconds
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec

from ..cases.promtool import check_rules

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
NODE_TICKET = 'alertname="TrainAgentDown", severity="warning", cluster="c1", node="n1"'
JOB_TICKET = 'alertname="TrainDataSkew", severity="warning", cluster="c1", job_id="j1"'
JOB_PAGE = 'alertname="TrainJobStalled", severity="critical", cluster="c1", job_id="j1"'
OWNER_TICKET = f'{JOB_TICKET}, route="owners"'


def rules(folder: Path, deployment: str = DEPLOYMENT) -> dict[str, str]:
    path = folder / "deployment.yaml"
    path.write_text(deployment, encoding="utf-8")
    return render(read_spec(spec_path()), Delivery(), read_deployment(path))


def firing(labels: str, begin: int, end: int) -> dict[str, str]:
    """An alert that fires from minute to minute."""
    series = f'ALERTS{{alertstate="firing", {labels}}}'
    return {"series": series, "values": f"_x{begin} 1x{end - begin - 1} stale"}


def tried(folder: Path, alerts: list[dict[str, str]], expected: dict[int, str | None]) -> None:
    """promtool finds the alert, with the name of the ticket, at just these minutes."""
    selector = f'count by (ticket) (ALERTS{{alertname="{OVERNIGHT}", alertstate="firing"}})'
    expressions = [
        {
            "expr": selector,
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": f'{{ticket="{name}"}}', "value": 1}] if name else [],
        }
        for minute, name in expected.items()
    ]
    test = {"interval": "1m", "input_series": alerts, "promql_expr_test": expressions}
    content = {"rule_files": [OVERNIGHT_FILE], "evaluation_interval": "1m", "tests": [test]}
    check_rules(folder, content)


@pytest.mark.promtool
@pytest.mark.parametrize(
    ("alerts", "expected"),
    [
        pytest.param(
            [firing(NODE_TICKET, 2 * HOUR, 3 * HOUR)],
            {150: None, 539: None, MORNING: "TrainAgentDown", 575: None, FRIDAY + MORNING: None},
            id="at night",
        ),
        pytest.param(
            [firing(NODE_TICKET, SATURDAY + 600, SATURDAY + 660)],
            {FRIDAY + MORNING: None, MONDAY + MORNING: "TrainAgentDown", TUESDAY + MORNING: None},
            id="at the weekend",
            # promtool takes a minute for the five days.
            marks=[pytest.mark.release, pytest.mark.timeout(600)],
        ),
        pytest.param(
            [firing(NODE_TICKET, 17 * HOUR - 1, 17 * HOUR + 3)],
            {17 * HOUR + 10: None, FRIDAY + MORNING: "TrainAgentDown"},
            id="muted before its group's wait was over",
        ),
        pytest.param(
            [firing(NODE_TICKET, 16 * HOUR, 17 * HOUR + 20)],
            {FRIDAY + minute: None for minute in (MORNING, 9 * HOUR + 29)},
            id="told in the afternoon",
        ),
        pytest.param(
            [firing(NODE_TICKET, 8 * HOUR, 11 * HOUR)],
            dict.fromkeys((MORNING, 9 * HOUR + 29)),
            id="still there in the morning",
        ),
        pytest.param(
            [firing(JOB_TICKET, 2 * HOUR, 3 * HOUR), firing(JOB_PAGE, 2 * HOUR, 3 * HOUR)],
            {MORNING: None},
            id="under a page of its job",
        ),
        pytest.param(
            [firing(OWNER_TICKET, 2 * HOUR, 3 * HOUR)], {MORNING: "TrainDataSkew"}, id="no owners"
        ),
    ],
)
def test_a_ticket_that_nobody_heard_of_is_told_in_the_morning(
    tmp_path: Path, alerts: list[dict[str, str]], expected: dict[int, str | None]
) -> None:
    write_files(tmp_path, rules(tmp_path))
    tried(tmp_path, alerts, expected)


@pytest.mark.promtool
def test_what_owners_hear_at_any_hour_is_not_told_again(tmp_path: Path) -> None:
    write_files(tmp_path, rules(tmp_path, DEPLOYMENT + OWNERS))
    tried(tmp_path, [firing(OWNER_TICKET, 2 * HOUR, 3 * HOUR)], {MORNING: None})


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
