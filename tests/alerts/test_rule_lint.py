"""The project's lint of its rules: the generated ones have no fault, and each fault is found."""

from pathlib import Path

import pytest
import yaml

from lockstep_alerts.checks import findings

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
