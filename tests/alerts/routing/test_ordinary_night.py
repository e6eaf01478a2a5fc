"""A real Alertmanager that mutes tickets at night, and what is told in the morning."""

import os
import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lockstep_alerts.output import render, write_files
from lockstep_alerts.reading.model import Delivery, Duration
from lockstep_alerts.routing.receivers import Deployment, webhooks
from lockstep_alerts.routing.time_windows import OfficeHours, TimeWindow
from lockstep_alerts.routing.tree import OVERNIGHT
from lockstep_alerts.stack.servers import (
    read_state,
    wait_for,
)
from lockstep_catalogue import agent

from ..cases.synthetic import (
    Samples,
    Stretch,
    growing,
    sample_node,
    steady,
)
from .played_stack import hurried_spec, playing

pytestmark = [pytest.mark.server, pytest.mark.release, pytest.mark.timeout(560)]
LENGTH_SECONDS, GONE_SECONDS = 500, 75


def office_hours(opening: datetime) -> OfficeHours:
    """Office hours of every day that begin at this minute and last one hour at most."""
    begin = opening.hour * 3600 + opening.minute * 60
    finish = min(begin + 3600, 86_400)
    texts = [f"{each // 3600:02}:{each // 60 % 60:02}" for each in (begin, finish)]
    times = dict(zip(("start_time", "end_time"), texts, strict=True))
    window = TimeWindow(name="office-hours", intervals=({"times": [times]},), time_zone="UTC")
    return OfficeHours(window=window, days=tuple(range(7)), begin=begin, end=finish)


def use(deployment: Deployment, folder: Path, delivery: Delivery) -> None:
    """The running servers read the rules and the routes of a deployment."""
    write_files(folder, render(hurried_spec(), delivery, deployment))
    for name in ("prometheus", "alertmanager"):
        os.kill(read_state(folder)[name].pid, signal.SIGHUP)


def test_a_ticket_of_the_night_is_told_when_the_office_opens(tmp_path: Path) -> None:
    present = [
        sample_node(agent.AGENT_INFO, steady(1, LENGTH_SECONDS), "n1", version="1"),
        sample_node(agent.AGENT_TICK, growing(Stretch(LENGTH_SECONDS, 1)), "n1"),
    ]
    expected = [
        Samples(f'kube_node_info{{cluster="c1", node="{node}"}}', steady(1, seconds))
        for node, seconds in (("n1", LENGTH_SECONDS), ("n9", GONE_SECONDS))
    ]
    with playing(tmp_path / "stack", [*present, *expected]) as theatre:
        opening = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=5)
        delivery = Delivery(
            pager_base=read_state(theatre.folder)["pager"].url, group_interval=Duration("10s")
        )
        deployment = replace(webhooks(delivery), office_hours=office_hours(opening))
        use(deployment, theatre.folder, delivery)
        fired = 'ALERTS{alertname="TrainAgentDown", alertstate="firing", node="n9"}'
        assert wait_for(lambda: bool(theatre.query(fired)), 120)
        assert wait_for(lambda: not theatre.query(fired), 150)
        ended = datetime.now(UTC)
        assert ended < opening, "the ticket has to end before the office opens"
        assert theatre.pages("c1", "tickets") == {}
        page = theatre.wait_for_page("c1", OVERNIGHT, "tickets", seconds=320)
        assert datetime.now(UTC) >= opening
        [alert] = page["alerts"]
        assert alert["labels"]["ticket"] == "TrainAgentDown"
        assert alert["labels"]["node"] == "n9"
        assert list(theatre.pages("c1", "tickets")) == [OVERNIGHT]
