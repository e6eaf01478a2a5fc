import subprocess
from pathlib import Path

import pytest
import yaml

from lockstep_alerts.reading.model import Delivery, Duration
from lockstep_alerts.routing import alertmanager_config, read_deployment

DEPLOYMENT = """\
secrets: elsewhere
page:
  - pagerduty: {routing_key_file: /run/secrets/pagerduty}
ticket:
  - slack: {api_url_file: /run/secrets/slack, channel: "#training"}
watchdog:
  - webhook: {url: "https://deadman.example.org/lockstep", token_file: /run/secrets/deadman}
"""


def route(config: Path, labels: tuple[str, ...]) -> str:
    command = ["amtool", "config", "routes", "test", f"--config.file={config}", *labels]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.promtool
@pytest.mark.parametrize("has_deployment", [False, True])
def test_alertmanager_notifies_the_right_people(tmp_path: Path, has_deployment: bool) -> None:
    path = tmp_path / "deployment.yaml"
    path.write_text(DEPLOYMENT, encoding="utf-8")
    deployment = read_deployment(path) if has_deployment else None
    config = tmp_path / "alertmanager.yaml"
    config.write_text(yaml.safe_dump(alertmanager_config(Delivery(), deployment)), encoding="utf-8")
    assert route(config, ("severity=critical", "job_id=j1", "cluster=c1")) == "pager"
    assert route(config, ("severity=critical", "cluster=c1")) == "pager"
    assert route(config, ("severity=warning", "job_id=j1")) == "tickets"
    assert route(config, ("severity=info", "job_id=j1")) == "nobody"
    expected = "watchdog" if has_deployment else "nobody"
    assert route(config, ("alertname=TrainWatchdog", "severity=none")) == expected
    # An alert of somebody else's rules without a severity is not lost.
    assert route(config, ("alertname=Other",)) == "tickets"


def test_bases_and_intervals_are_those_of_the_delivery() -> None:
    delivery = Delivery(pager_base="http://127.0.0.1:1", group_interval=Duration("3s"))
    text = yaml.safe_dump(alertmanager_config(delivery))
    assert "http://127.0.0.1:1/tickets" in text
    assert "group_interval: 3s" in text
