"""Three ordinary things about which no alert may say a word, each alert by its own name.

One failed scrape, a rollout of the agents, and a Prometheus that has just started empty; the jobs
have a NaN, a fallback, a failed write and an allocation that failed in their past. Every fourth
alert is a case in each run, all of them in the exhaustive one.
"""

import json
import subprocess
from typing import Any

import pytest

from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec

from . import expand
from .shipped import shipped

SCRAPE = 60
PAST = {
    "lockstep_train_nonfinite_steps_total": "41",
    'lockstep_train_restores_total{restore="fallback"}': "3",
    'lockstep_train_checkpoints_total{outcome=~"invalid|failed"}': "2",
    "lockstep_train_out_of_memory_total": "4",
}
ROLLOUT = [
    {
        "event": "agents restart",
        "node": f"n{number}",
        "from": f"{8 + number}m",
        "to": f"{9 + number}m+1 scrape",
    }
    for number in range(1, 5)
]
CASES: dict[str, list[dict[str, Any]]] = {
    "one failed scrape": [{"event": "scrape fails", "from": "10m", "to": "10m+1 scrape"}],
    "a rollout of the agents": ROLLOUT,
    "an empty Prometheus": [{"event": "Prometheus is away", "from": "0", "to": "5m"}],
}
ALERTS = [
    each.name
    for each in read_spec(spec_path()).alerts
    if each.severity in {"critical", "warning", "info"}
]


@pytest.fixture(scope="module")
def fired(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    paging = shipped(SCRAPE, tmp_path_factory.mktemp("rules"))
    found = {}
    for name, events in CASES.items():
        situation = {"name": name, "events": events, "series": PAST, "at": [{"time": "0-35m"}]}
        path = tmp_path_factory.mktemp("case") / "case.yaml"
        path.write_text(json.dumps(expand.test_file(situation, SCRAPE, paging)), encoding="utf-8")
        done = subprocess.run(
            ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False
        )
        firing, _ = expand.read_output(done.stdout + done.stderr)
        found[name] = {alert["alertname"] for alerts in firing.values() for alert in alerts}
        # The watchdog proves that the rules ran at all.
        assert "TrainWatchdog" in found[name]
    return found


@pytest.mark.promtool
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("alert", ALERTS[::4])
def test_ordinary_life_makes_no_alert(alert: str, case: str, fired: dict[str, set[str]]) -> None:
    assert alert not in fired[case]


@pytest.mark.promtool
@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("alert", ALERTS)
def test_ordinary_life_makes_none_of_the_alerts(
    alert: str, case: str, fired: dict[str, set[str]]
) -> None:
    assert alert not in fired[case]
