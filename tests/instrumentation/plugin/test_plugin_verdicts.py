"""Whom a job without a line has slow or missing, as played runs are judged."""

from pathlib import Path

import pytest

from .played import RUNS, play

QUICK = [name for name, run in RUNS.items() if run.kind == "hang" or name == "graphs, v4"]
TIMED = ["late, v7", "late device, v6"]


@pytest.mark.parametrize("name", QUICK)
def test_a_standing_job_names_who_did_not_come_and_a_replaying_one_nobody(
    root: Path, name: str
) -> None:
    answer = play(root, RUNS[name])
    assert answer.is_right, answer


@pytest.mark.timing
@pytest.mark.parametrize("name", TIMED)
def test_the_late_rank_is_named_and_waits_the_least(root: Path, name: str) -> None:
    answer = play(root, RUNS[name])
    assert answer.is_right, answer
    assert answer.longest != answer.verdict  # who waits longest is a victim


@pytest.mark.release
@pytest.mark.parametrize("name", [name for name in RUNS if name not in {*QUICK, *TIMED}])
def test_the_others_are_judged_right(root: Path, name: str) -> None:
    answer = play(root, RUNS[name])
    assert answer.is_right, answer
