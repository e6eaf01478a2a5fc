"""Three ordinary things about which no alert may say a word.

One failed scrape, a rollout of the agents, and a Prometheus that has just started empty; the jobs
have a NaN, a fallback, a failed write and an allocation that failed in their past.
"""

import json
import subprocess
from pathlib import Path
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
ALERTS = {
    each.name
    for each in read_spec(spec_path()).alerts
    if each.severity in {"critical", "warning", "info"}
}


@pytest.mark.promtool
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "events"), CASES.items(), ids=CASES)
def test_ordinary_life_makes_no_alert(
    name: str, events: list[dict[str, Any]], tmp_path: Path
) -> None:
    situation = {"name": name, "events": events, "series": PAST, "at": [{"time": "0-35m"}]}
    path = tmp_path / "case.yaml"
    test = expand.test_file(situation, SCRAPE, shipped(SCRAPE, tmp_path))
    path.write_text(json.dumps(test), encoding="utf-8")
    command = ["promtool", "test", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    firing, _ = expand.read_output(done.stdout + done.stderr)
    fired = {alert["alertname"] for alerts in firing.values() for alert in alerts}
    # The watchdog proves that the rules ran at all.
    assert "TrainWatchdog" in fired
    assert not fired & ALERTS
