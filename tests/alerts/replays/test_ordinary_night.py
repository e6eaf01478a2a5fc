"""A real Prometheus that is restarted in a rollout, and a real Alertmanager that mutes tickets."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lockstep_alerts.output import render, write_files
from lockstep_alerts.reading.model import Delivery, Duration
from lockstep_alerts.routing.deployment import Deployment, webhooks
from lockstep_alerts.routing.overnight import OVERNIGHT
from lockstep_alerts.routing.time_windows import OfficeHours, TimeWindow
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec
from lockstep_alerts.stack.servers import (
    READY_PATHS,
    Server,
    StackOptions,
    down,
    end,
    is_ready,
    read_state,
    start,
    stop,
    up,
    wait_for,
)
from lockstep_catalogue import agent, training

from ..cases.synthetic import (
    Placement,
    Samples,
    Stretch,
    growing,
    healthy,
    sample_node,
    steady,
    training_job,
)
from .replay import Exporter, Theatre, hurried_spec, playing

pytestmark = [pytest.mark.server, pytest.mark.release, pytest.mark.timeout(560)]
NODES = ("n1", "n2")
LENGTH_SECONDS = 500
WARM_SECONDS, QUIET_SECONDS = 40, 160
AWAY_SECONDS = 6.0
GONE_SECONDS = 75


class Agent(Exporter):
    """An agent that is away for a while, as in a rollout: its scrapes fail."""

    is_away = False

    def exposition(self) -> str:
        if self.is_away:
            raise ConnectionError("the agent is away")
        return super().exposition()

    def handle_error(self, *_: object) -> None:
        assert self.is_away


def series_of(node: str) -> list[Samples]:
    """What the agent of a node says of a job with a NaN long ago and one at the end."""
    places = (Placement(NODES[0]),) * 2 + (Placement(NODES[1]),) * 2
    job = training_job(healthy(LENGTH_SECONDS), places=places)
    loss = growing(Stretch(QUIET_SECONDS, 0), Stretch(LENGTH_SECONDS, 1), start=5)
    return [
        *(each for each in job if f'instance="{node}:9400"' in each.series),
        sample_node(agent.AGENT_INFO, steady(1, LENGTH_SECONDS), node, version="1"),
        sample_node(agent.AGENT_TICK, growing(Stretch(LENGTH_SECONDS, 1)), node),
        sample_node(training.NONFINITE_STEPS, loss, node, job_id="j1"),
    ]


@contextmanager
def rollout(folder: Path) -> Iterator[tuple[Theatre, list[Agent]]]:
    """A stack over the shipped spec, unhurried, with an agent a node."""
    with ExitStack() as open_agents:
        agents = [open_agents.enter_context(Agent(series_of(node))) for node in NODES]
        for each in agents:
            threading.Thread(target=each.serve_forever, daemon=True).start()
            open_agents.callback(each.shutdown)
        targets = tuple(f"127.0.0.1:{each.server_port}" for each in agents)
        options = StackOptions(
            folder=folder, targets=targets, group_interval=Duration("10s"), ports={}
        )
        up(options, read_spec(spec_path(), Duration("1s")))
        open_agents.callback(down, folder)
        yield Theatre(folder=folder, exporter=agents[0]), agents


def restart_prometheus(folder: Path) -> subprocess.Popen[bytes]:
    running = read_state(folder)["prometheus"]
    stop(running)
    server = Server(
        name="prometheus",
        command=running.command,
        url=running.url,
        ready_path=READY_PATHS["prometheus"],
    )
    process = start(server, folder / "prometheus-again.log")
    assert wait_for(lambda: is_ready(server.url, server.ready_path), 30)
    return process


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_rollout_with_a_restart_of_prometheus_notifies_nobody(tmp_path: Path) -> None:
    with rollout(tmp_path / "stack") as (theatre, agents), ExitStack() as undo:
        theatre.wait_until(WARM_SECONDS)
        before = theatre.query("count(up == 1)")
        for number, each in enumerate(agents):
            each.is_away = True
            if number == 0:
                undo.callback(end, restart_prometheus(theatre.folder))
            time.sleep(AWAY_SECONDS)
            each.is_away = False
        theatre.wait_until(QUIET_SECONDS - 5)
        assert theatre.query("count(up == 1)")[0]["value"][1] == before[0]["value"][1] == "3"
        [seen] = theatre.query('min(min_over_time(up{job="lockstep-agent"}[150s]))')
        assert seen["value"][1] == "0"
        assert theatre.pages("c1") == theatre.pages("c1", "tickets") == {}
        # The next NaN of the same job is told: the servers were listening.
        page = theatre.wait_for_page("c1", "TrainLossBad", "tickets")
        assert {each["labels"]["job_id"] for each in page["alerts"]} == {"j1"}


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
    expected = [
        Samples(f'kube_node_info{{cluster="c1", node="{node}"}}', steady(1, seconds))
        for node, seconds in (("n1", LENGTH_SECONDS), ("n9", GONE_SECONDS))
    ]
    with playing(tmp_path / "stack", [*series_of("n1"), *expected]) as theatre:
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
