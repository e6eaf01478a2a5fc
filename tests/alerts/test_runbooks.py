"""Runbooks: their queries are PromQL over series that exist, their commands are ours."""

import re
import subprocess
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest
import yaml

from lockstep_alerts.output import UNKNOWN, alert_rule, render
from lockstep_alerts.reading.model import Delivery, Duration
from lockstep_alerts.routing import alertmanager_config
from lockstep_alerts.shipped import runbooks_path, spec_path
from lockstep_alerts.spec import read_spec
from lockstep_prometheus.promql import selectors

from .cases.promtool import check_rules, every_case

PAGES = sorted(runbooks_path().glob("*.md"))
QUERY = re.compile(r"^```promql\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]*\b(?:lockstep_[a-z]+_|slo:)[^`\n]*)`")
COMMAND = re.compile(r"(?:^ {4,}|`)lockstep ([a-z]+)((?: [a-z-]+)*)", re.MULTILINE)
OTHER_PAGE = re.compile(r"\]\([A-Z][A-Za-z]+\.md\)")
DIAGNOSIS = re.compile(r"^## (?:Diagnosis|Three commands)\n(.*?)^## ", re.MULTILINE | re.DOTALL)
COMMANDS = {entry.name: entry for entry in entry_points(group="lockstep.commands")}


def queries(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return QUERY.findall(text) + INLINE.findall(text)


def unknown_series(query: str) -> set[str]:
    return {each.name for each in selectors(query) if each.series is None}


def unknown_commands(text: str) -> list[str]:
    """Commands that do not exist; of a group, subcommands too."""
    unknown = []
    for name, rest in COMMAND.findall(text):
        command = COMMANDS[name].load() if name in COMMANDS else None
        words = rest.split()
        if isinstance(command, click.Group) and words:
            command = command.get_command(click.Context(command), words[0])
        if command is None:
            unknown.append(f"{name}{rest}")
    return unknown


@pytest.mark.promtool
def test_promtool_takes_every_query(tmp_path: Path) -> None:
    rules = [
        {"record": f"r:{page.stem.lower()}_{number}:query", "expr": query}
        for page in PAGES
        for number, query in enumerate(queries(page))
    ]
    assert len(rules) > len(PAGES)
    path = tmp_path / "queries.rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "runbooks", "rules": rules}]}))
    command = ["promtool", "check", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def find_faults(page: Path) -> Iterator[str]:
    text = page.read_text(encoding="utf-8")
    [diagnosis] = DIAGNOSIS.findall(text)
    if not any(pattern.search(diagnosis) for pattern in (QUERY, INLINE, COMMAND, OTHER_PAGE)):
        yield f"{page.name}: its diagnosis has no query and no command"
    yield from (f"{page.name}: no command {name}" for name in unknown_commands(text))
    for query in queries(page):
        yield from (f"{page.name}: no series {name}" for name in unknown_series(query))


def test_a_diagnosis_has_queries_or_commands_and_all_of_them_exist() -> None:
    assert [fault for page in PAGES for fault in find_faults(page)] == []


SPEC = read_spec(spec_path(), Duration("5s"))
SENTENCES = {
    ("TrainNodeFault", "a GPU is lost"): "GPU 3: lost. ",
    ("TrainNodeFault", "a fatal Xid"): " Xid 79 on 0000:3b:00.0: restart_node.",
    ("TrainPortFault", "its port is down"): "mlx5_3 down.",
    ("ClusterLosing", "jobs at broken ports lose much"): "Jobs: j1 (8 GPUs), j2 (8 GPUs),"
    " j3 (8 GPUs), j4 (8 GPUs).",
}


@pytest.mark.promtool
@pytest.mark.parametrize(("name", "case_name"), SENTENCES)
def test_a_page_names_the_parts_that_failed(tmp_path: Path, name: str, case_name: str) -> None:
    [(alert, case)] = [
        (alert, case)
        for alert in SPEC.condition_alerts
        if alert.name == name
        for case in every_case(alert, SPEC.windows)
        if case.name == case_name
    ]
    assert case.fires is not None
    rule = {
        **alert_rule(alert, SPEC.windows, Delivery()),
        "annotations": {"description": alert.condition.evidence()},
    }
    groups = yaml.safe_load(render(SPEC, Delivery())[alert.area.rules_file])["groups"]
    recorded = [each for group in groups for each in group["rules"] if "record" in each]
    rules = {"groups": [{"name": "g", "rules": [*recorded, rule]}]}
    owner = dict.fromkeys(("project", "queue", "class"), UNKNOWN) if alert.is_of_job else {}
    if alert.weight:
        owner["weight"] = f"{alert.weight:02d}"
    else:
        owner["incident"] = case.fires["cause"]
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


SHIPPED_SPEC = read_spec(spec_path())
PAGE_KINDS = {"JobNotProgressing", "JobLosing", "WorkAtRisk", "ClusterLosing", "Blind"}
MOST_ALERTS = 40


def test_the_pages_are_the_five_about_lost_work() -> None:
    assert {each.name for each in SHIPPED_SPEC.alerts if each.is_page} == PAGE_KINDS


def test_the_list_is_short() -> None:
    assert len({each.name for each in SHIPPED_SPEC.alerts}) <= MOST_ALERTS


def test_nothing_keeps_an_alert_quiet() -> None:
    """Not even a page: Alertmanager inhibits by what is silenced or muted too."""
    assert "inhibit_rules" not in alertmanager_config(Delivery())


def test_owners_are_never_pages() -> None:
    assert not [each.name for each in SHIPPED_SPEC.alerts if each.route and each.is_page]


def test_pages_are_grouped_by_the_loss_and_carry_its_causes() -> None:
    config = yaml.safe_dump(alertmanager_config(Delivery()))
    assert "incident" in config
    for page in filter(lambda each: each.is_page, SHIPPED_SPEC.alerts):
        rule = yaml.safe_load(yaml.safe_dump(alert_rule(page, SHIPPED_SPEC.windows, Delivery())))
        assert rule["labels"]["incident"], page.name
        assert "ALERTS_FOR_STATE" in rule["annotations"]["causes"], page.name


def test_causes_have_different_weights_in_the_order_of_the_file() -> None:
    weights = [each.weight for each in SHIPPED_SPEC.condition_alerts if each.weight]
    assert weights == sorted(set(weights))
