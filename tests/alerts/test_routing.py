import subprocess
from pathlib import Path

import pytest
import yaml

from lockstep_alerts.model import Delivery, Duration
from lockstep_alerts.routing import alertmanager_config


@pytest.mark.promtool
@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (("severity=critical", "job_id=j1", "cluster=c1"), "pager"),
        (("severity=critical", "cluster=c1"), "pager"),
        (("severity=warning", "job_id=j1"), "tickets"),
        (("severity=info",), "tickets"),
    ],
)
def test_alertmanager_tells_the_right_people(
    tmp_path: Path, labels: tuple[str, ...], receiver: str
) -> None:
    config = tmp_path / "alertmanager.yaml"
    config.write_text(yaml.safe_dump(alertmanager_config(Delivery())), encoding="utf-8")
    test = ["amtool", "config", "routes", "test", f"--config.file={config}"]
    done = subprocess.run([*test, f"--verify.receivers={receiver}", *labels], check=False)
    assert done.returncode == 0


def test_bases_and_intervals_are_those_of_the_delivery() -> None:
    delivery = Delivery(pager_base="http://127.0.0.1:1", group_interval=Duration("3s"))
    text = yaml.safe_dump(alertmanager_config(delivery))
    assert "http://127.0.0.1:1/tickets" in text
    assert "group_interval: 3s" in text
