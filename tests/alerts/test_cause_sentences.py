"""Sentences of pages on causes: parts that failed, asked of Prometheus as the page is written."""

from pathlib import Path

import pytest
import yaml

from lockstep_alerts.output import UNKNOWN, alert_rule
from lockstep_alerts.reading.model import Delivery, Duration
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec

from .cases.promtool import check_rules, every_case

SPEC = read_spec(spec_path(), Duration("5s"))
NAMED_ALERTS = {alert.name: alert for alert in SPEC.alerts}
SENTENCES = {
    ("TrainNodeFault", "a GPU is lost"): "GPU 3: lost. ",
    ("TrainNodeFault", "a fatal Xid"): " Xid 79 on 0000:3b:00.0: restart_node.",
    ("TrainPortFault", "its port is down"): "mlx5_3 down.",
}


@pytest.mark.promtool
@pytest.mark.parametrize(("name", "case_name"), SENTENCES)
def test_a_page_names_the_parts_that_failed(tmp_path: Path, name: str, case_name: str) -> None:
    alert = NAMED_ALERTS[name]
    cases = every_case(alert, SPEC.windows)
    [case] = [each for each in cases if each.name == case_name]
    assert case.fires is not None
    rule = {
        **alert_rule(alert, SPEC.windows, Delivery()),
        "annotations": {"description": alert.condition.evidence()},
    }
    rules = {"groups": [{"name": "g", "rules": [rule]}]}
    owner = dict.fromkeys(("project", "queue", "class"), UNKNOWN) if alert.is_of_job else {}
    owner["weight"] = f"{alert.weight:02d}"
    expected = {
        "exp_labels": {**case.fires, "severity": alert.severity, **owner},
        "exp_annotations": {"description": SENTENCES[name, case_name]},
    }
    at_time = {"eval_time": f"{case.at_seconds}s", "alertname": name, "exp_alerts": [expected]}
    inputs = [{"series": each.series, "values": each.course.promtool(5)} for each in case.series]
    test = {"interval": "5s", "input_series": inputs, "alert_rule_test": [at_time]}
    tests = {"rule_files": ["r.yaml"], "evaluation_interval": "5s", "tests": [test]}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    check_rules(tmp_path, tests)
