"""Where the time of all ranks went, by cause and in money."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep_reports.cost import causes, goodput
from lockstep_reports.read import Attempt, Recording
from lockstep_reports.report import Report, make_report
from lockstep_reports.steps import Steps

from .synthetic_job import Slow, SyntheticJob


def born(steps: Steps, seconds_before: float) -> Steps:
    """The same job with pages made so long before each rank's first step."""
    members = [
        replace(member, born_seconds=float(start) - seconds_before)
        for member, start in zip(steps.members, steps.start[:, 0], strict=True)
    ]
    return replace(steps, members=tuple(members))


def reported(steps: Steps, price: float | None = None) -> Report:
    recording = Recording(
        source_kind="pages",
        path=Path("j"),
        steps=steps,
        events=(),
        attempts=(Attempt(number=0, outcome=None),),
    )
    return make_report(recording, now_seconds=0.0, price_per_gpu_hour=price)


def test_startup_is_a_state_of_its_own_and_all_states_make_up_the_time() -> None:
    steps = born(SyntheticJob().steps(), 30.0)
    told = goodput(steps, ())
    assert told.seconds["startup"] == pytest.approx(4 * 30.0)
    spans = steps.start[:, -1] + steps.seconds[:, -1] - steps.start[:, 0] + 30.0
    assert told.covered_seconds == pytest.approx(float(spans.sum()), rel=1e-3)


def test_startup_is_not_counted_where_the_first_step_is_not_there() -> None:
    steps = born(SyntheticJob().steps(), 30.0)
    later = replace(steps, numbers=steps.numbers + 50)
    assert goodput(later, ()).seconds["startup"] == 0


def test_causes_are_dearest_first_and_money_follows_the_price() -> None:
    report = reported(SyntheticJob(slow=(Slow(rank=2),)).steps(), price=5.0)
    told = causes(report.goodput, 5.0)
    assert [line.gpu_hours for line in told] == sorted(
        (line.gpu_hours for line in told), reverse=True
    )
    assert {line.cause for line in told} >= {"straggler_wait", "synchronisation", "input"}
    assert "productive" not in {line.cause for line in told}
    wait = next(line for line in told if line.cause == "straggler_wait")
    assert wait.money == pytest.approx(5.0 * 3 * report.cost.lost_seconds / 3600)
    whole = sum(line.ratio for line in told) + (report.goodput.ratio or 0.0)
    assert whole == pytest.approx(1.0)


def test_columns_that_stand_for_many_steps_cost_as_much_as_the_steps() -> None:
    """Means over tens of steps keep verdict and cost, though not the tail."""
    steps = SyntheticJob(num_steps=800, slow=(Slow(rank=1, from_step=400),)).steps()
    ten = np.arange(800).reshape(-1, 10)

    def mean(values: np.ndarray) -> np.ndarray:
        return np.asarray(values[:, ten].mean(axis=2))

    coarse = replace(
        steps,
        numbers=steps.numbers[ten[:, 0]],
        seconds=mean(steps.seconds),
        phases={phase: mean(values) for phase, values in steps.phases.items()},
        start=steps.start[:, ten[:, 0]],
        first_arrival=np.full((4, 80), np.nan),
        last_arrival=np.full((4, 80), np.nan),
        loss=mean(steps.loss),
        stands_for=np.full(80, 10.0),
    )
    fine, rough = reported(steps), reported(coarse)
    assert (rough.verdict.ranks, rough.verdict.phase) == (fine.verdict.ranks, fine.verdict.phase)
    assert rough.cost.lost_seconds == pytest.approx(fine.cost.lost_seconds, rel=0.05)
    assert rough.summary.count == 800
    assert rough.summary.p95_seconds is None
    for state, seconds in fine.goodput.seconds.items():
        assert rough.goodput.seconds[state] == pytest.approx(seconds, rel=0.05, abs=1.0)
