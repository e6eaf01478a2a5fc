"""A real Alertmanager that mutes tickets at night, and what is told in the morning."""

import json
import os
import re
import signal
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from servers import Exposition, serving, wait_until

from lockstep_alerts.alert import Alert
from lockstep_alerts.output import render, write_files
from lockstep_alerts.reading.model import Delivery, Duration
from lockstep_alerts.routing.receivers import Deployment, OfficeHours, TimeWindow, webhooks
from lockstep_alerts.routing.tree import OVERNIGHT
from lockstep_alerts.shipped import one_machine_spec_path
from lockstep_alerts.spec import Spec, read_spec
from lockstep_alerts.stack.servers import StackOptions, down, read_state, up, wait_for
from lockstep_catalogue import agent

from ..cases.synthetic import Course, Samples, Stretch, growing, sample_node, steady

_LONGEST_PENDING = Duration("10s")
_LONGEST_KEEP = Duration("20s")
_POLL_SECONDS = 0.5


def value_at(course: Course, seconds: float) -> float | None:
    """The value of a course; None before it is born and after its last stretch."""
    begin, value = float(course.unborn_seconds), course.start
    if seconds < begin:
        return None
    for stretch in course.stretches:
        if seconds <= begin + stretch.seconds:
            return value + (seconds - begin) * stretch.per_second
        begin += stretch.seconds
        value += stretch.seconds * stretch.per_second
    return None


def _with_node(series: str) -> str:
    """A series as the agent exposes it: it names its node on each."""
    if re.search(r"\bnode=", series):
        return series
    return re.sub(r'instance="(\w+):9400"', r'\g<0>, node="\1"', series)


class Exporter(Exposition):
    """Serves each series at its value by the time since the start; times of day stay times of day.

    Args:
        series: to play. Courses of timestamps count from 0; names that end in ``timestamp_seconds``
            or ``tick_seconds`` are served as Unix time.
    """

    def __init__(self, series: list[Samples]) -> None:
        self._series = [Samples(_with_node(each.series), each.course) for each in series]
        self.begin = time.time()
        super().__init__()

    def exposition(self) -> str:
        elapsed = time.time() - self.begin
        lines = []
        for each in self._series:
            value = value_at(each.course, elapsed)
            if value is None:
                continue
            is_time = re.match(r"\w*(timestamp_seconds|tick_seconds)\b", each.series)
            lines.append(f"{each.series} {value + self.begin if is_time else value!r}")
        return "\n".join(lines) + "\n"


def hurried_spec() -> Spec:
    """The shipped spec at scrapes every second; what waits for minutes waits for seconds."""
    spec = read_spec(one_machine_spec_path(), Duration("1s"))

    def hurried(alert: Alert) -> Alert:
        pending, keep = alert.pending, alert.keep_firing
        if pending and pending.seconds > _LONGEST_PENDING.seconds:
            pending = _LONGEST_PENDING
        if keep and keep.seconds > _LONGEST_KEEP.seconds:
            keep = _LONGEST_KEEP
        return replace(alert, pending=pending, keep_firing=keep)

    return replace(
        spec,
        condition_alerts=tuple(map(hurried, spec.condition_alerts)),
        objective_alerts=tuple(map(hurried, spec.objective_alerts)),
    )


@dataclass(frozen=True, kw_only=True)
class Theatre:
    """A running stack that scrapes an exporter."""

    folder: Path
    exporter: Exporter

    def wait_until(self, seconds: float) -> None:
        """Sleeps until so many seconds of the play are over."""
        time.sleep(max(0.0, self.exporter.begin + seconds - time.time()))

    def pages(self, cluster: str, receiver: str = "pager") -> dict[str, list[Mapping[str, Any]]]:
        """Notifications of firing alerts of a cluster by their group, oldest first."""
        path = self.folder / "pages.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        pages: dict[str, list[Mapping[str, Any]]] = {}
        for page in map(json.loads, lines):
            group = dict(page["group_labels"])
            if group.get("cluster") != cluster or page["receiver"] != receiver:
                continue
            if page["status"] == "firing":
                name = " ".join(value for key, value in group.items() if key != "cluster")
                pages.setdefault(name, []).append(page)
        return pages

    def wait_for_page(
        self, cluster: str, name: str, receiver: str = "pager", seconds: float = 120
    ) -> Mapping[str, Any]:
        """The first notification of a group."""
        found = wait_until(
            lambda: self.pages(cluster, receiver).get(name),
            seconds,
            lambda: name,
            pause=_POLL_SECONDS,
        )
        return found[0] if found else {}

    def query(self, expression: str) -> list[dict[str, Any]]:
        url = read_state(self.folder)["prometheus"].url
        answer = httpx.get(
            f"{url}/api/v1/query", params={"query": expression}, trust_env=False
        ).json()
        result = answer["data"]["result"]
        assert isinstance(result, list)
        return result


@contextmanager
def playing(folder: Path, series: list[Samples]) -> Iterator[Theatre]:
    """A stack over the hurried spec that scrapes the series once a second."""
    with serving(Exporter(series)) as exporter:
        options = StackOptions(
            folder=folder, targets=(exporter.target,), group_interval=Duration("10s"), ports={}
        )
        with warnings.catch_warnings():
            # The servers outlive their handles, as they outlive the command.
            warnings.simplefilter("ignore", ResourceWarning)
            up(options, hurried_spec())
        try:
            yield Theatre(folder=folder, exporter=exporter)
        finally:
            down(folder)


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
