"""Files for each ruler: objects, namespaces, and rules without the words that it lacks."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from lockstep_alerts.command import alerts
from lockstep_alerts.output import ROUTES_FILE, render, to_yaml
from lockstep_alerts.reading.entry import SpecError
from lockstep_alerts.reading.model import Delivery
from lockstep_alerts.routing import alertmanager_config, read_deployment
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec
from lockstep_alerts.writers import Target, formats, render_for
from lockstep_alerts.writers.formats import (
    MAX_RULES_PER_GROUP,
    RuleFile,
    native,
    remark_on,
    rule_files,
    with_native_histograms,
)
from lockstep_catalogue import METRICS, ledger
from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.promql import histogram_quantile

RENDERED = render(read_spec(spec_path()), Delivery())
FILES = list(rule_files(RENDERED))
DEPLOYMENT = """\
secrets: elsewhere
page:
  - pagerduty: {routing_key_file: /run/pagerduty}
ticket:
  - email:
      {to: a@example.org, from: b@example.org, smarthost: "m:25", auth_username: u,
       auth_password_file: /run/mail}
watchdog:
  - webhook: {url: "https://deadman.example.org/", token_file: /run/token}
office_hours: {time_zone: UTC, days: "monday:friday", hours: "09:00-17:00"}
maintenance:
  - {name: cooling, from: 2026-12-03T22:00, to: 2026-12-04T06:00}
"""


def documents_for(
    ruler: str, lacks: tuple[str, ...] = (), rendered: Mapping[str, str] = RENDERED
) -> dict[str, Any]:
    """The documents that a ruler is given by the name of their file."""
    target = Target(
        format=ruler,
        lacks=lacks,
        namespace="monitoring",
        labels={"release": "kps"},
        key_store="oncall",
    )
    texts = render_for(target, rendered)
    return {name: yaml.safe_load(text) for name, text in texts.items()}


def rules_in(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [rule for group in groups for rule in group["rules"]]


EVERY_RULE = [rule for file in FILES for rule in rules_in(list(file.groups))]


@pytest.mark.parametrize(
    ("ruler", "kind", "version"),
    [
        ("prometheus-operator", "PrometheusRule", "monitoring.coreos.com/v1"),
        ("victoriametrics", "VMRule", "operator.victoriametrics.com/v1beta1"),
    ],
)
def test_objects_hold_all_rules_and_are_found_by_label(ruler: str, kind: str, version: str) -> None:
    objects = [each for each in documents_for(ruler).values() if each.get("kind") == kind]
    assert {each["apiVersion"] for each in objects} == {version}
    assert all(each["metadata"]["labels"] == {"release": "kps"} for each in objects)
    assert all(each["metadata"]["namespace"] == "monitoring" for each in objects)
    held = [rule for each in objects for rule in rules_in(each["spec"]["groups"])]
    assert sorted(map(str, held)) == sorted(map(str, EVERY_RULE))


def test_an_object_that_is_too_large_is_parted_by_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    every_group = tuple(group for file in FILES for group in file.groups)
    limit = 1000 + max(len(to_yaml({"groups": [group]})) for group in every_group)
    monkeypatch.setattr(formats, "MAX_OBJECT_BYTES", limit)
    one_file = [RuleFile(stem="lockstep", groups=every_group)]
    texts = formats.rule_objects(one_file, formats.PROMETHEUS_RULE, "n", {})
    assert 1 < len(texts) < len(every_group)
    assert all(len(text.encode()) < limit for text in texts.values())
    documents = [yaml.safe_load(text) for text in texts.values()]
    names = [document["metadata"]["name"] for document in documents]
    assert len(set(names)) == len(names)
    groups = [group["name"] for document in documents for group in document["spec"]["groups"]]
    assert groups == [group["name"] for group in every_group]
    monkeypatch.setattr(formats, "MAX_OBJECT_BYTES", 1000)
    with pytest.raises(SpecError, match=r"group .*: is larger than the 1000 bytes of an object"):
        formats.rule_objects(FILES, formats.PROMETHEUS_RULE, "n", {})


def test_the_alertmanager_object_takes_secrets_from_kubernetes(tmp_path: Path) -> None:
    path = tmp_path / "deployment.yaml"
    path.write_text(DEPLOYMENT, encoding="utf-8")
    config = alertmanager_config(Delivery(), read_deployment(path))
    rendered = {**RENDERED, ROUTES_FILE: to_yaml(config)}
    documents = documents_for("prometheus-operator", rendered=rendered)
    spec = documents["lockstep.alertmanagerconfig.yaml"]["spec"]
    receivers = {each["name"]: each for each in spec["receivers"]}
    [pagerduty] = receivers["pager"]["pagerdutyConfigs"]
    assert pagerduty["routingKey"] == {"name": "oncall", "key": "pagerduty"}
    assert pagerduty["sendResolved"] is True
    [email] = receivers["tickets"]["emailConfigs"]
    assert email["authPassword"] == {"name": "oncall", "key": "mail"}
    assert email["headers"][0]["key"] == "Subject"
    [webhook] = receivers["watchdog"]["webhookConfigs"]
    credentials = webhook["httpConfig"]["authorization"]["credentials"]
    assert credentials == {"name": "oncall", "key": "token"}
    *_, page, ticket = spec["route"]["routes"]
    assert page["groupBy"] == ["cluster", "incident"]
    assert {"name": "severity", "value": "critical", "matchType": "="} in page["matchers"]
    assert ticket["activeTimeIntervals"] == ["office-hours"]
    _, cooling = spec["muteTimeIntervals"]
    first = cooling["timeIntervals"][0]
    assert first["daysOfMonth"] == [{"start": 3, "end": 3}]
    assert first["times"] == [{"startTime": "22:00", "endTime": "24:00"}]
    assert "inhibitRules" not in spec


def test_a_time_zone_that_an_object_cannot_say_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deployment.yaml"
    path.write_text(DEPLOYMENT.replace("UTC", "Asia/Tokyo"), encoding="utf-8")
    words = ["generate", "--format", "prometheus-operator", "--deployment", str(path)]
    outcome = CliRunner().invoke(alerts, [*words, "--out", str(tmp_path / "out")])
    assert outcome.exit_code == 2
    assert "office-hours: time_zone 'Asia/Tokyo': an object knows no time zones" in outcome.output
    assert not (tmp_path / "out").exists()


def test_mimir_gets_a_namespace_a_file_within_its_limits() -> None:
    documents = documents_for("mimir")
    spaces = [each for name, each in documents.items() if name != ROUTES_FILE]
    assert [each["namespace"] for each in spaces] == [file.stem for file in FILES]
    groups = [group for each in spaces for group in each["groups"]]
    assert rules_in(groups)
    assert sorted(map(str, rules_in(groups))) == sorted(map(str, EVERY_RULE))


def test_recorded_series_beyond_mimirs_limit_are_named() -> None:
    rules = [{"record": "a:b", "expr": "c"}] * (MAX_RULES_PER_GROUP + 1)
    written = {"f.mimir.yaml": to_yaml({"groups": [{"name": "long.rules", "rules": rules}]})}
    mimir = Target(format="mimir", labels={}, key_store="s")
    assert remark_on(mimir, written).startswith("long.rules: more than 20 rules")
    assert remark_on(Target(labels={}, key_store="s"), written) == ""


def test_a_ruler_without_keep_firing_for_gets_none() -> None:
    assert any("keep_firing_for" in rule for rule in EVERY_RULE)
    target = Target(lacks=("keep_firing_for",), labels={}, key_store="s")
    texts = render_for(target, RENDERED)
    assert not any("keep_firing_for" in text for text in texts.values())


def test_buckets_become_a_native_histogram() -> None:
    classic = histogram_quantile(0.9, ledger.QUEUE_WAIT, "6h", CLUSTER)
    wait = ledger.QUEUE_WAIT.name
    assert native(f"{classic} > 5") == (
        f"histogram_quantile(0.9, sum by (cluster) (rate({wait}[6h]))) > 5"
    )
    with pytest.raises(SpecError, match="selects buckets by their bound"):
        native(f'rate({wait}_bucket{{le="60.0"}}[5m])')


def test_sum_and_count_become_functions_of_a_native_histogram() -> None:
    waits = ledger.QUEUE_WAIT.name
    mean = f'rate({waits}_sum{{queue="a"}}[1h]) / rate({waits}_count[1h])'
    assert (
        native(mean).split()
        == (
            f'histogram_sum(rate({waits}{{queue="a"}}[1h])) / histogram_count(rate({waits}[1h]))'
        ).split()
    )


def test_no_rule_needs_buckets_that_a_native_histogram_has_none_of() -> None:
    classic = [rule["expr"] for rule in EVERY_RULE if "_bucket" in rule["expr"]]
    assert classic
    parts = [name for metric in METRICS for name in metric.sample_names if name != metric.name]
    for file in map(with_native_histograms, FILES):
        assert not [name for name in parts if name in str(file)]


@pytest.mark.promtool
@pytest.mark.parametrize("native_histograms", [False, True])
def test_promtool_accepts_every_variant(tmp_path: Path, native_histograms: bool) -> None:
    target = Target(
        native_histograms=native_histograms, lacks=("keep_firing_for",), labels={}, key_store="s"
    )
    paths = []
    for name, text in render_for(target, RENDERED).items():
        if name != ROUTES_FILE:
            paths.append(tmp_path / name)
            paths[-1].write_text(text, encoding="utf-8")
    done = subprocess.run(["promtool", "check", "rules", *paths], capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("vmalert") is None, reason="not on PATH: vmalert")
def test_vmalert_accepts_the_rules(tmp_path: Path) -> None:
    # Debian 12 has 1.79, which knows no keep_firing_for.
    words = ("--format", "victoriametrics", "--lacks", "keep_firing_for")
    outcome = CliRunner().invoke(alerts, ["generate", "--out", str(tmp_path), *words])
    assert outcome.exit_code == 0, outcome.output
    command = ["vmalert", "-dryRun", f"-rule={tmp_path}/lockstep*.rules.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--label", "release"), "--label 'release': write KEY=VALUE"),
        (("--namespace", "A b"), "--namespace 'A b': write small letters"),
        (("--format", "thanos"), "'thanos' is not one of"),
    ],
)
def test_a_name_that_kubernetes_refuses_is_refused_before(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    outcome = CliRunner().invoke(alerts, ["generate", "--out", str(tmp_path / "out"), *words])
    assert outcome.exit_code == 2
    assert message in " ".join(outcome.output.split())
    assert not (tmp_path / "out").exists()
