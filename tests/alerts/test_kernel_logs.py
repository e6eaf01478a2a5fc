"""Kernel logs of the field: no alert says drain, or has failed, where nobody has to act."""

import re
from pathlib import Path

import pytest
import yaml

from lockstep_agent.collectors.node.kernel_log import KernelLog
from lockstep_agent.state_file import StateFile
from lockstep_alerts.output import render, write_files
from lockstep_alerts.reading.model import Delivery
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec
from lockstep_catalogue.incidents import GPU_XID_INFO, GPU_XID_LAST

from .cases.promtool import check_rules

CASES = yaml.safe_load(
    (Path(__file__).parents[1] / "fixtures/field-reports/kernel-logs.yaml").read_text()
)
_ASKS = re.compile(r"drain|has failed", re.IGNORECASE)
_ONSET_SECONDS = 300


def series_of(folder: Path, node: str, text: str) -> list[dict[str, str]]:
    """What the agent of a node serves of a log that is written at the onset."""
    path = folder / node
    path.write_text(text + "\n")
    log = KernelLog({"kernel": path}, folder, folder, StateFile(folder / f"{node}.json"))
    found = []
    for each in log.collect():
        names = (label.name for label in each.metric.labels)
        pairs = {"cluster": "c1", "node": node, **dict(zip(names, each.labels, strict=True))}
        labels = ", ".join(f'{name}="{value}"' for name, value in pairs.items())
        last = _ONSET_SECONDS if each.metric is GPU_XID_LAST else each.value
        first = "_" if each.metric in {GPU_XID_INFO, GPU_XID_LAST} else "0"
        values = f"{first}x9 {last:g}x20"
        found.append({"series": f"{each.metric.name}{{{labels}}}", "values": values})
    return found


@pytest.mark.promtool
def test_alerts_ask_for_a_drain_where_a_log_has_a_fatal_failure_only(tmp_path: Path) -> None:
    rules = render(read_spec(spec_path()), Delivery())
    write_files(tmp_path, rules)
    every = [
        rule
        for text in rules.values()
        for group in yaml.safe_load(text).get("groups", ())
        for rule in group["rules"]
    ]
    asking = [rule["alert"] for rule in every if _ASKS.search(str(rule.get("annotations")))]
    nodes = [name for name, case in CASES.items() if case["pages"]]
    series = [each for name in CASES for each in series_of(tmp_path, name, CASES[name]["log"])]
    alerts = {
        "expr": f'count by (node) (ALERTS{{alertname=~"{"|".join(asking)}", alertstate!=""}})',
        "eval_time": f"{_ONSET_SECONDS + 150}s",
        "exp_samples": [{"labels": f'{{node="{name}"}}', "value": 1} for name in nodes],
    }
    check_rules(tmp_path, {
        "rule_files": sorted(name for name in rules if name.endswith(".rules.yaml")),
        "evaluation_interval": "30s",
        "tests": [{"interval": "30s", "input_series": series, "promql_expr_test": [alerts]}],
    })  # fmt: skip
