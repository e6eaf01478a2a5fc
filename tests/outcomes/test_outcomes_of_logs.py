"""A log's first cause has the outcome and class of the one outcome table."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep_outcomes.classify import classify
from lockstep_outcomes.evidence import evidence_of_log
from lockstep_outcomes.joblogs.model import JobLog
from lockstep_outcomes.joblogs.outcome import judge_log
from lockstep_outcomes.joblogs.read import read_log

from .joblog_cases import FOLDER, TRUTHS

BENCH = Path(__file__).parents[2] / "bench" / "joblogs"
sys.path.insert(0, str(BENCH))
confusion: Any = importlib.import_module("confusion")


def difference(log: JobLog) -> str | None:
    """Where reader and table differ; the table calls what is not known by its name."""
    incident = judge_log(log)
    if incident.outcome == "running":
        return None
    judged = classify(evidence_of_log(log, incident))
    expected = (incident.outcome, incident.failure_class)
    if incident.outcome == "unknown":
        expected = ("unknown", "unknown")
    elif incident.outcome == "time_limit":
        expected = ("time_limit", "user")  # too short a limit is its owner's to change
    found = (judged.outcome, judged.failure_class)
    return None if found == expected else f"{incident.cause}: reader {expected}, table {found}"


@pytest.mark.parametrize("name", sorted(TRUTHS))
def test_reader_and_table_agree_on_each_case(name: str) -> None:
    assert difference(read_log(FOLDER / f"{name}.log")) is None
