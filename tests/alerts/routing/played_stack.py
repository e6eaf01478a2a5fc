"""Plays scripted courses of series to a real Prometheus, and reads what a real pager received."""

import json
import re
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from http_servers import Exposition, serving

from lockstep_alerts.alert import Alert
from lockstep_alerts.reading.model import Duration
from lockstep_alerts.shipped import one_machine_spec_path
from lockstep_alerts.spec import Spec, read_spec
from lockstep_alerts.stack.servers import StackOptions, down, read_state, up

from ..cases.synthetic import Course, Samples

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
    """The shipped spec at scrapes every second; what waits for minutes waits for seconds.

    How long an alert waits is what promtool's cases test. Here it is who is notified of what.
    """
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
    """A running stack that scrapes an exporter.

    Attributes:
        folder: of the stack.
        exporter: what is played.
    """

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
        deadline = time.monotonic() + seconds
        while name not in (pages := self.pages(cluster, receiver)):
            assert time.monotonic() < deadline, (name, pages)
            time.sleep(_POLL_SECONDS)
        return pages[name][0]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query."""
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
            folder=folder,
            targets=(exporter.target,),
            group_interval=Duration("10s"),
            ports={},
        )
        with warnings.catch_warnings():
            # The servers outlive their handles, as they outlive the command.
            warnings.simplefilter("ignore", ResourceWarning)
            up(options, hurried_spec())
        try:
            yield Theatre(folder=folder, exporter=exporter)
        finally:
            down(folder)
