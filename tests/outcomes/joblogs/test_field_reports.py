"""Reports of the field, rebuilt: each log's first cause, as an expert reads it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from lockstep_outcomes.joblogs.outcome import judge_log
from lockstep_outcomes.joblogs.read import read_log

CASES: dict[str, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[2] / "fixtures/field-reports/joblogs.yaml").read_text()
)


@pytest.mark.parametrize("name", CASES)
def test_a_log_of_the_field_names_its_cause(tmp_path: Path, name: str) -> None:
    case, path = CASES[name], tmp_path / "job.log"
    path.write_text(case["log"] + "\n")
    found = judge_log(read_log(path))
    node = found.group if found.blame == "group" else None
    assert {
        "outcome": found.outcome, "cause": found.cause, "class": found.failure_class,
        "ranks": list(found.ranks), "node": node, "log": case["log"],
    } == case  # fmt: skip
