"""Real Alertmanager: an alert keeps quiet what it explains, and never another job's alert.

Every edge has a source that has stood for a week, and then one that somebody has silenced.
"""

import itertools
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import yaml

from lockstep_alerts.reading.model import Delivery
from lockstep_alerts.routing import alertmanager_config
from lockstep_alerts.routing.inhibition import GRAPH, Inhibition
from lockstep_catalogue.labels import CLUSTER

Labels = dict[str, str]
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"(.*)"')
READY_SECONDS = 20.0
WEEK = timedelta(days=7)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("alertmanager")
    config = folder / "alertmanager.yaml"
    config.write_text(yaml.safe_dump(alertmanager_config(Delivery())), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = shutil.which("alertmanager") or "prometheus-alertmanager"
    command = [
        program, f"--config.file={config}", f"--storage.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}/api/v2"
    try:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                httpx.get(f"{address}/status", trust_env=False).raise_for_status()
                break
            except httpx.HTTPError:
                assert time.monotonic() < deadline
                assert server.poll() is None
                time.sleep(0.05)
        yield address
    finally:
        server.terminate()
        server.wait(timeout=READY_SECONDS)


def labels_of(matchers: object, names: tuple[str, ...]) -> Labels:
    """Labels that a list of matchers takes."""
    found: Labels = {"alertname": names[0]} if names else {"alertname": "Other"}
    assert isinstance(matchers, list)
    for text in matchers:
        match = MATCHER.fullmatch(text)
        assert match
        label, test, value = match.groups()
        if (label == "alertname" and test == "=~") or (test in {"=", "=~"} and value):
            found[label] = value.split("|")[0]
        elif (test, value) == ("!=", ""):
            found.setdefault(label, "x1")
    return found


def pair(edge: Inhibition, number: int) -> tuple[Labels, Labels, Labels]:
    """A source, a target that it explains, and the same target elsewhere."""
    rule = edge.rule()
    source = labels_of(rule["source_matchers"], edge.sources)
    target = labels_of(rule["target_matchers"], edge.targets)
    for label in edge.equal:
        source[label] = target[label] = f"{label}-{number}"
    moved = next((label for label in edge.equal if label != CLUSTER.name), CLUSTER.name)
    return source, target, {**target, moved: f"other-{number}"}


def post(url: str, *alerts: Labels) -> None:
    now = datetime.now(UTC)
    content = [
        {"labels": labels, "startsAt": (now - WEEK).isoformat(), "endsAt": (now + WEEK).isoformat()}
        for labels in alerts
    ]
    httpx.post(f"{url}/alerts", json=content, trust_env=False).raise_for_status()


def state_of(url: str, labels: Mapping[str, str]) -> Mapping[str, Any]:
    """The status of an alert, once Alertmanager has looked at it."""
    query = {"filter": [f'{name}="{value}"' for name, value in labels.items()]}
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        found = httpx.get(f"{url}/alerts", params=query, trust_env=False).raise_for_status().json()
        [alert] = [each for each in found if each["labels"] == dict(labels)]
        status: Mapping[str, Any] = alert["status"]
        if status["state"] != "unprocessed":
            return status
        time.sleep(0.05)
    raise AssertionError(f"Alertmanager has not looked at {labels}")


def wait_until(url: str, labels: Labels, *, inhibited: bool) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while bool(state_of(url, labels)["inhibitedBy"]) != inhibited:
        assert time.monotonic() < deadline, f"{labels} should{'' if inhibited else ' not'} be quiet"
        time.sleep(0.05)


@pytest.mark.server
@pytest.mark.parametrize("number", range(len(GRAPH)))
@pytest.mark.parametrize("silenced", [False, True], ids=["standing", "silenced"])
def test_a_cause_hides_what_it_explains_and_nothing_else(
    url: str, number: int, *, silenced: bool
) -> None:
    source, target, other = pair(GRAPH[number], number + 100 * silenced)
    post(url, source, target, other)
    if silenced:
        matchers = [
            {"name": name, "value": value, "isRegex": False} for name, value in source.items()
        ]
        now = datetime.now(UTC)
        silence = {
            "matchers": matchers, "createdBy": "test", "comment": "known",
            "startsAt": now.isoformat(), "endsAt": (now + WEEK).isoformat(),
        }  # fmt: skip
        httpx.post(f"{url}/silences", json=silence, trust_env=False).raise_for_status()
    wait_until(url, target, inhibited=True)
    wait_until(url, other, inhibited=False)


def test_no_alert_of_a_rule_keeps_a_whole_cluster_quiet() -> None:
    by_people = {"TrainMaintenance"}
    for edge in GRAPH:
        if not set(edge.sources) <= by_people or not edge.sources:
            assert set(edge.equal) - {CLUSTER.name}, edge


def test_the_graph_has_no_circle() -> None:
    edges = [
        (source, target)
        for edge in GRAPH
        for source, target in itertools.product(edge.sources, edge.targets)
    ]
    seen: set[str] = set()

    def walk(alert: str, path: tuple[str, ...]) -> None:
        assert alert not in path, path
        if alert in seen:
            return
        for source, target in edges:
            if source == alert:
                walk(target, (*path, alert))
        seen.add(alert)

    for source, _ in edges:
        walk(source, ())
