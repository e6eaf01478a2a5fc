"""Whom a job without a line has slow or missing, as played runs are judged."""

from pathlib import Path

import pytest

from .played import RUNS, play

TIMED = ("late, v7", "late device, v6")


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    if RUNS[name].kind == "hang" or name == "graphs, v4":
        return []
    return [pytest.mark.timing if name in TIMED else pytest.mark.release]


@pytest.mark.parametrize("name", [pytest.param(n, marks=marks_of(n), id=n) for n in RUNS])
def test_what_is_said_of_a_played_run_is_true(root: Path, name: str) -> None:
    answer = play(root, RUNS[name])
    assert answer.is_right, answer
    assert answer.longest != answer.verdict or not answer.longest  # who waits longest is a victim
