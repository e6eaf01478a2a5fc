"""``lockstep alerts check`` and ``test``: what is run, and that a wrong file is found."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from lockstep_alerts.alert import JOBS
from lockstep_alerts.capacity import fit, refusal
from lockstep_alerts.checks import findings
from lockstep_alerts.command import alerts
from lockstep_alerts.output import ROUTES_FILE, write_files
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec

from .cases.promtool import cases_file, rules_and_tests

RULES_FILE, TESTS_FILE = JOBS.rules_file, cases_file(JOBS)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    """Generated files with one alert, for the time that promtool takes."""
    spec = read_spec(spec_path())
    few = [each for each in spec.condition_alerts if each.name == "JobLosing"]
    objectives = spec.objective_alerts[:1]
    spec = replace(spec, condition_alerts=tuple(few), objective_alerts=objectives)
    write_files(tmp_path, rules_and_tests(spec))
    return tmp_path


def run(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(alerts, [words[0], "--dir", str(folder), *words[1:]])


def replace_in(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.promtool
def test_lint_tests_configuration_and_routes_are_run_and_listed(folder: Path) -> None:
    outcome = run(folder, "test")
    assert outcome.exit_code == 0, outcome.output
    lines = [line for line in outcome.stdout.splitlines() if "promtool" in line or "amtool" in line]
    assert all(line.startswith("passed  ") for line in lines)
    for words in ("check rules --lint=all", "check-config", "routes", f"tests of {TESTS_FILE}"):
        assert any(words in line for line in lines), words


@pytest.mark.promtool
def test_each_promtool_that_is_named_runs_too(folder: Path) -> None:
    path = shutil.which("promtool")
    assert path is not None
    outcome = run(folder, "check", "--promtool", path)
    assert outcome.exit_code == 0, outcome.output
    other = run(folder, "check", "--promtool", str(folder / RULES_FILE))
    assert other.exit_code == 2


@pytest.mark.promtool
@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        (ROUTES_FILE, "receiver: pager", "receiver: tickets", "Expected receivers did not match"),
        (ROUTES_FILE, "receivers:", "receiver_s:", "receiver_s not found"),
        (RULES_FILE, "[5m]", "[5]", "parse error"),
    ],
)
def test_a_wrong_route_configuration_or_rule_is_found(
    folder: Path, name: str, old: str, new: str, message: str
) -> None:
    replace_in(folder / name, old, new)
    outcome = run(folder, "test")
    assert outcome.exit_code == 1
    assert "FAILED" in outcome.stdout
    assert message in outcome.stdout


@pytest.mark.promtool
def test_an_alert_that_never_fires_fails_its_test(folder: Path) -> None:
    replace_in(folder / RULES_FILE, "alert: JobLosing", "alert: TrainLossOther")
    outcome = run(folder, "test")
    assert outcome.exit_code == 1
    assert f"tests of {TESTS_FILE}" in outcome.stdout


@pytest.mark.promtool
def test_rules_without_rule_tests_are_checked_all_the_same_and_it_says_so(folder: Path) -> None:
    for path in folder.glob("*.tests.yaml"):
        path.unlink()
    outcome = run(folder, "test")
    assert outcome.exit_code == 0, outcome.output
    assert "has no lockstep*.tests.yaml, so no rule is tested on series; in a" in outcome.stderr
    assert "routes" in outcome.stdout
    replace_in(folder / RULES_FILE, "[15m]", "[15]")
    assert run(folder, "test").exit_code == 1


@pytest.mark.promtool
def test_more_nodes_than_one_prometheus_holds_are_refused_with_the_number_that_it_holds(
    folder: Path,
) -> None:
    refused = run(folder, "check", "--nodes", "900000")
    assert refused.exit_code == 1
    [number] = re.findall(r"one Prometheus holds ([\d,]+) nodes", refused.output)
    most = int(number.replace(",", ""))
    assert refusal(most) == ""
    assert refusal(most + 1).startswith(f"--nodes {most + 1}: rule group lockstep-")


def test_a_line_is_fitted_with_its_error_and_growth_that_is_more_is_told() -> None:
    straight = fit([(nodes, 2.0 + 3.0 * nodes) for nodes in (16, 64, 128, 256)])
    assert (straight.fixed, straight.per_node) == pytest.approx((2.0, 3.0))
    assert straight.error_ratio == pytest.approx(0.0, abs=1e-9)
    assert straight.highest(1024) == pytest.approx(3074.0)
    bent = fit([(nodes, nodes**1.5) for nodes in (16, 64, 128, 256)])
    assert bent.exponent == pytest.approx(1.5)
    assert bent.error_at(1024) > bent.error_at(512) == pytest.approx(bent.error_ratio)
    assert bent.highest(256) >= 256**1.5, "what was measured is within the error"
    assert fit([(nodes, 3.0 * nodes - 40.0) for nodes in (16, 64, 128)]).fixed == 0.0


def test_a_folder_without_the_files_is_named(tmp_path: Path) -> None:
    outcome = run(tmp_path, "test")
    assert outcome.exit_code == 2
    assert "has no lockstep-*.rules.yaml; generate it" in outcome.output


def test_a_missing_tool_is_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    for command in ("check", "test"):
        outcome = run(folder, command)
        assert outcome.exit_code == 2
        assert "promtool is not on PATH; install it (Debian package prometheus)" in outcome.output


GENERATED = Path(__file__).parents[2] / "alerts" / "generated"


def faults(folder: Path, **rule: str) -> list[str]:
    """The faults of an alert next to a file that records ``a:b``."""
    other = {"record": "a:b", "expr": "sum by (x) (up)"}
    for name, each in (("other", other), ("own", {"alert": "A", **rule})):
        text = yaml.safe_dump({"groups": [{"name": name, "rules": [each]}]})
        (folder / f"{name}.rules.yaml").write_text(text, encoding="utf-8")
    return list(findings(sorted(folder.glob("*.rules.yaml"))))


def test_the_generated_rules_have_no_fault() -> None:
    assert list(findings(sorted(GENERATED.glob("*.rules.yaml")))) == []


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ('up{job=~"agent"} == 0', "job is compared by a pattern with 'agent'"),
        ('up{job!~"agent"} == 0', "write an equality"),
        ("a:b > 1", "a:b is recorded in another group; say by last_over_time"),
        ("avg by (x) (a / b) > 1", "b may be 0 in an aggregation"),
        ("sum by (x) (a / on (x) group_left () (b)) > 1", "(b) may be 0"),
        ("max by (x) (a > 1 or (c + a / (b * 2))) > 1", "(b * 2) may be 0"),
        ("count_over_time(up[5m]) < 3", "give the alert a for"),
        ("max by (x) (max_over_time(up[5m])) == 0", "give the alert a for"),
    ],
)
def test_a_fault_is_found_and_named(tmp_path: Path, expression: str, sentence: str) -> None:
    [found] = faults(tmp_path, expr=expression)
    assert found.startswith("own.rules.yaml: A: ")
    assert sentence in found


@pytest.mark.parametrize(
    "rule",
    [
        {"expr": 'up{job=~"agent|ledger"} == 0'},
        {"expr": "last_over_time(a:b[2m]) > 1"},
        {"expr": "sum by (x) (a / on (x) group_left () (b > 0)) > 1"},
        {"expr": "sum by (x) (a / 2) > 1"},
        {"expr": "sum by (x) (a) / sum by (x) (b) > 1"},
        {"expr": "count_over_time(up[5m]) < 3", "for": "5m"},
        {"expr": "count_over_time(up[5m]) > 3"},
    ],
)
def test_what_is_right_is_no_fault(tmp_path: Path, rule: dict[str, str]) -> None:
    assert faults(tmp_path, **rule) == []


def test_a_series_of_another_group_of_the_same_file_is_another_ones(tmp_path: Path) -> None:
    record, alert = {"record": "a:b", "expr": "up"}, {"alert": "A", "expr": "a:b > 1"}
    path = tmp_path / "own.rules.yaml"

    def found(*groups: list[dict[str, str]]) -> list[str]:
        listed = [{"name": f"g{number}", "rules": rules} for number, rules in enumerate(groups)]
        path.write_text(yaml.safe_dump({"groups": listed}), encoding="utf-8")
        return list(findings([path]))

    assert found([record, alert]) == []
    [fault] = found([record], [alert])
    assert "a:b is recorded in another group; say by last_over_time" in fault
