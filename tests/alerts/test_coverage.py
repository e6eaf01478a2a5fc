"""Coverage of measures, failure modes and metrics."""

import re
from pathlib import Path

import pytest
import yaml
from writers.coverage import alerts_of, alerts_of_failure, deadlines, indicators_of, render
from writers.readers import panels_of, readers, rules, rules_of, unread_records
from writers.requirements import FAILURES, MEASURES, Failure, Measure

from lockstep_agent.collectors.node.kernel_log import KernelLog
from lockstep_agent.state_file import StateFile
from lockstep_alerts.output import render as render_rules
from lockstep_alerts.output import write_files
from lockstep_alerts.reading.model import Delivery, Duration
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec
from lockstep_catalogue import METRICS
from lockstep_catalogue.incidents import GPU_XID_INFO, GPU_XID_LAST

from .cases.promtool import check_rules

PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"
SPEC = read_spec(spec_path())
FAST_SPEC = read_spec(spec_path(), Duration("5s"))


def test_a_metric_has_a_reader_or_says_for_whom_it_is_and_never_both() -> None:
    assert [m.name for m in METRICS if bool(readers(m)) == bool(m.for_users)] == []
    assert [record.name for record in unread_records()] == []


def test_the_page_is_generated_from_rules_and_boards() -> None:
    assert PAGE.read_text(encoding="utf-8") == render()


@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.id)
def test_a_measure_has_an_indicator_a_panel_and_an_alert(measure: Measure) -> None:
    assert indicators_of(measure, SPEC)
    assert panels_of(measure.series)
    assert set(alerts_of(measure, SPEC)) <= set(rules())


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.id)
def test_a_failure_has_its_alerts_in_time_or_says_why_not(failure: Failure) -> None:
    assert any(rules_of(series) for series in failure.series)
    named = alerts_of_failure(failure, SPEC)
    assert set(failure.deadlines) <= set(named)
    late = {
        alert
        for alert, required in failure.deadlines.items()
        if deadlines(alert, FAST_SPEC) > required
    }
    assert late == set(failure.misses)


def test_what_is_not_notified_has_no_alert() -> None:
    [preemption] = [failure for failure in FAILURES if failure.id == "F7"]
    assert alerts_of_failure(preemption, SPEC) == []


def test_measures_and_failures_are_all_there() -> None:
    assert [each.id for each in MEASURES] == [f"M{number}" for number in range(1, 16)]
    assert [each.id for each in FAILURES] == [f"F{number}" for number in range(1, 13)]


CASES = yaml.load(
    (Path(__file__).parents[1] / "fixtures/field-reports/kernel-logs.yaml").read_text(),
    yaml.CSafeLoader,
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
    rules = render_rules(read_spec(spec_path()), Delivery())
    write_files(tmp_path, rules)
    every = [
        rule
        for text in rules.values()
        for group in yaml.load(text, yaml.CSafeLoader).get("groups", ())
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
