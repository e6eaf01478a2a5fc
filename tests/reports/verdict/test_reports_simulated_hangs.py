"""No rank is named falsely in simulated hangs of data, pipeline and tensor parallel jobs."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from ..matrices import matrix

BENCH = Path(__file__).parents[3] / "bench" / "hangs"
sys.path.insert(0, str(BENCH))
hangs: Any = importlib.import_module("hangs")
simulation: Any = importlib.import_module("simulation")
_JOBS = 50


@pytest.mark.parametrize("first", matrix(range(1, 401, _JOBS), 1))
@pytest.mark.parametrize("loses_dump", [False, True])
def test_simulated_hangs_name_nobody_falsely(first: int, *, loses_dump: bool) -> None:
    table = hangs.confusion(first, _JOBS, loses_dump=loses_dump)
    assert sum(table.values()) == _JOBS
    assert not [row for row, column in table if column == "false"]
    assert {column for row, column in table if row == "none"} == {"nobody"}
    if not loses_dump:
        # A host that is stuck has entered nothing that others wait in.
        assert table["host", "right"] >= 2 * table["host", "unknown"]


def test_a_device_that_is_stuck_is_named_where_starts_are_recorded() -> None:
    named = 0
    for seed in range(60):
        job = simulation.Simulation(seed, "device")
        job.draw.seed(seed)
        verdict = hangs.verdict_of(job)
        assert set(verdict.ranks) <= set(job.truth)
        named += bool(verdict.ranks)
    assert named > 10


def test_swapped_operations_are_a_deadlock_and_nobody_is_named() -> None:
    verdicts = []
    for seed in range(40):
        job = simulation.Simulation(seed, "order")
        if job.hangs:
            verdicts.append(hangs.verdict_of(job))
    assert verdicts
    assert not any(verdict.ranks for verdict in verdicts)
    circles = [verdict for verdict in verdicts if verdict.cause == "deadlock"]
    assert len(circles) > len(verdicts) / 2
    assert all("circle" in verdict.evidence[0] for verdict in circles)
