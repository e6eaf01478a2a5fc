"""Real Alertmanager: whatever else fires, stands, is silenced or in maintenance, a page comes.

For pairs and triples of the generated alerts: one of them is a page that is active; each other one
is active, silenced, or of a cluster in maintenance, and was notified before the page begins or
comes with it. All labels that routes or inhibitions compare are equal, so that whatever could quiet
the page does. Combinations differ by their cluster and share an Alertmanager, thousands at a time.
"""

import itertools
import json
import random
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from servers import Answered, Answering, free_port, running

from lockstep_alerts.alert import Alert
from lockstep_alerts.reading.model import Delivery
from lockstep_alerts.routing import alertmanager_config, read_deployment
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec

Labels = dict[str, str]
STATES = ("active", "silenced", "maintenance")
QUIET_SECONDS = 5.0  # a group waits for 1 s
WEEK = timedelta(days=7)
CHUNK = 1500
SAMPLE = 600
ALERTS = [
    each for each in read_spec(spec_path()).alerts if each.severity in {"critical", "warning"}
]
REPAIRED = "repaired"  # a cluster whose maintenance lasts
DEPLOYMENT = """
page: [{webhook: {url: "http://127.0.0.1:1/page"}}]
ticket: [{webhook: {url: "http://127.0.0.1:1/ticket"}}]
maintenance:
  - {name: repair, days: "sunday:saturday", hours: "00:00-24:00", time_zone: UTC, cluster: repaired}
"""
IDS = {"job_id", "cluster", "node", "alertname"}


@dataclass(frozen=True)
class Combination:
    """A page, and others with the state of each; ``is_first`` where the others stand before it."""

    page: Alert
    others: tuple[tuple[Alert, str], ...]
    is_first: bool


def combinations() -> Iterator[Combination]:
    """Every pair and triple, in every order and state."""
    for page in (each for each in ALERTS if each.severity == "critical"):
        rest = [each for each in ALERTS if each is not page]
        for number in (1, 2):
            for others in itertools.combinations(rest, number):
                for states in itertools.product(STATES, repeat=number):
                    for is_first in (True, False):
                        yield Combination(page, tuple(zip(others, states, strict=True)), is_first)


def labels_of(alert: Alert, cluster: str, state: str, compared: set[str]) -> Labels:
    """Labels of an alert; each that Alertmanager compares is equal in all alerts of a cluster."""
    found = {"alertname": alert.name, "severity": alert.severity, "state": state, "node": "n1"}
    found["cluster"] = REPAIRED if state == "maintenance" else cluster
    if alert.is_of_job:
        found["job_id"] = "A"
    if alert.route:
        found["route"] = alert.route
    return found | dict.fromkeys(compared - IDS, "same")


def compared_labels(config: dict[str, Any]) -> set[str]:
    """Labels by which this configuration groups or inhibits."""
    found: set[str] = set()
    for rule in config.get("inhibit_rules", ()):
        found.update(rule["equal"])
    for route in config["route"]["routes"]:
        found.update(route.get("group_by", ()))
    return found


class Inbox(Answering):
    """A webhook that keeps the labels of every firing alert that it was told of."""

    request_queue_size = 1024

    def __init__(self) -> None:
        super().__init__()
        self.delivered: set[tuple[str, str]] = set()

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> Answered:
        del request
        firing = [each for each in json.loads(body)["alerts"] if each["status"] == "firing"]
        labels = [each["labels"] for each in firing]
        self.delivered.update((each["cluster"], each["alertname"]) for each in labels)
        return 200, b"", {}


@contextmanager
def alertmanager(folder: Path, config: dict[str, Any], inbox: Inbox) -> Iterator[str]:
    """Address of an Alertmanager with this configuration and no time to lose."""
    for route in (config["route"], *config["route"]["routes"]):
        route |= {"group_wait": "1s", "group_interval": "1s"}
    for receiver in config["receivers"]:
        for webhook in receiver.get("webhook_configs", ()):
            webhook["url"] = f"http://127.0.0.1:{inbox.server_port}/{receiver['name']}"
    file = folder / "alertmanager.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    port = free_port()
    program = shutil.which("alertmanager") or "prometheus-alertmanager"
    command = [
        program, f"--config.file={file}", f"--storage.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}/api/v2"
    with running(command, folder / "log", f"{url}/status") as is_ready:
        assert is_ready, (folder / "log").read_text()
        yield url


def post(url: str, path: str, content: object) -> None:
    httpx.post(f"{url}/{path}", json=content, trust_env=False, timeout=60).raise_for_status()


def post_alerts(url: str, alerts: Sequence[Labels], *, age: timedelta) -> None:
    now = datetime.now(UTC)
    times = {"startsAt": (now - age).isoformat(), "endsAt": (now + WEEK).isoformat()}
    post(url, "alerts", [{"labels": labels} | times for labels in alerts])


def undelivered(folder: Path, tried: Sequence[Combination]) -> list[Combination]:
    """The combinations whose page nobody gets."""
    file = folder / "deployment.yaml"
    file.write_text(DEPLOYMENT, encoding="utf-8")
    config = alertmanager_config(Delivery(), read_deployment(file))
    compared = compared_labels(config)
    inbox = Inbox()
    threading.Thread(target=inbox.serve_forever, daemon=True).start()
    standing: list[Labels] = []
    fresh: list[Labels] = []
    for number, each in enumerate(tried):
        cluster = f"c{number}"
        (fresh if each.is_first else standing).append(
            labels_of(each.page, cluster, "page", compared)
        )
        for other, state in each.others:
            standing.append(labels_of(other, cluster, state, compared))
    now = datetime.now(UTC)
    matcher = {"name": "state", "value": "silenced", "isRegex": False}
    silence = {
        "matchers": [matcher], "createdBy": "test", "comment": "known",
        "startsAt": now.isoformat(), "endsAt": (now + WEEK).isoformat(),
    }  # fmt: skip
    with alertmanager(folder, config, inbox) as url:
        post(url, "silences", silence)
        post_alerts(url, standing, age=WEEK)
        _settle(inbox)
        post_alerts(url, fresh, age=timedelta(0))
        _settle(inbox)
    inbox.shutdown()
    inbox.server_close()
    return [
        each for number, each in enumerate(tried)
        if (f"c{number}", each.page.name) not in inbox.delivered
    ]  # fmt: skip


def _settle(inbox: Inbox) -> None:
    """Wait until nothing has been delivered for a while."""
    before, since = -1, time.monotonic()
    while time.monotonic() < since + QUIET_SECONDS:
        if len(inbox.delivered) != before:
            before, since = len(inbox.delivered), time.monotonic()
        time.sleep(0.1)


def named(found: Sequence[Combination]) -> list[str]:
    return sorted({
        f"{each.page.name} under {[(other.name, state) for other, state in each.others]}"
        for each in found
    })  # fmt: skip


@pytest.mark.server
@pytest.mark.timeout(300)
def test_a_page_is_delivered_whatever_else_stands(tmp_path: Path) -> None:
    every = list(combinations())
    tried = random.Random(48).sample(every, min(SAMPLE, len(every)))
    assert not named(undelivered(tmp_path, tried))


@pytest.mark.server
@pytest.mark.release
@pytest.mark.timeout(7200)
def test_every_page_is_delivered_under_every_pair_and_triple(tmp_path: Path) -> None:
    every = list(combinations())
    for begin in range(0, len(every), CHUNK):
        folder = tmp_path / str(begin)
        folder.mkdir()
        assert not named(undelivered(folder, every[begin : begin + CHUNK]))
