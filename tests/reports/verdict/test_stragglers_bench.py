"""The bench that asks who is named: its plan, its table and its bound; and a quick run of it."""

import importlib
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[3] / "bench" / "stragglers"
sys.path.insert(0, str(BENCH))
plan: Any = importlib.import_module("plan")
healthy: Any = importlib.import_module("healthy")
cores: Any = importlib.import_module("cores")
verdicts: Any = importlib.import_module("verdicts")


def test_three_strategies_have_the_sixty_trials_of_each_size() -> None:
    trials = [
        trial
        for trial in plan.plan(4, seed=3, repeats=2)
        if trial.pattern == "steady" and trial.origin in verdicts.PHASES
    ]
    assert 3 * sum(trial.percent >= 35 for trial in trials) >= 60
    assert 3 * sum(trial.percent == 12 for trial in trials) >= 60


def test_trials_follow_each_other_with_healthy_steps_between() -> None:
    trials = plan.plan(4, seed=3, repeats=2)
    for before, after in itertools.pairwise(trials):
        assert after.start == before.start + before.steps + plan.HEALTHY


@pytest.mark.parametrize(
    ("named", "of", "bound"),
    [
        (0, 100, 1 - 0.05**0.01),
        (0, 250, 0.01191),
        (1, 100, 0.0466),
        (5, 100, 0.1023),
        (1, 1, 1.0),
        (4, 4, 1.0),
    ],
)
def test_the_bound_is_the_exact_one(named: int, of: int, bound: float) -> None:
    assert healthy.bound_share(named, of) == pytest.approx(bound, rel=2e-3)


@pytest.mark.parametrize("rank_steps", [4_000, 48_000, 1_000_000])
def test_healthy_runs_are_whole_windows_and_no_fewer_rank_steps_than_asked(rank_steps: int) -> None:
    rounds = {name: healthy.rounds(name, rank_steps) for name in healthy._SHARES}
    assert all(steps % cores.WINDOW_STEPS == 0 for runs in rounds.values() for steps in runs)
    assert sum(healthy._RANKS[name] * sum(runs) for name, runs in rounds.items()) >= rank_steps


def test_a_rank_leaves_a_reading_for_each_window_and_one_at_its_end(tmp_path: Path) -> None:
    mine = cores.Cores()
    for number in range(2 * cores.WINDOW_STEPS):
        mine.step(number)
    mine.write(tmp_path, 0)
    (readings,) = cores.read_cores(tmp_path, 1)
    assert len(readings) == 3
    assert readings[0].wall_seconds < readings[-1].wall_seconds
    assert readings[0].processor_seconds <= readings[-1].processor_seconds


@pytest.mark.exhaustive
@pytest.mark.timing
@pytest.mark.distributed
@pytest.mark.timeout(180)
def test_a_quick_run_of_the_bench_names_who_is_slow_and_says_the_bound() -> None:
    bench = subprocess.run(
        [sys.executable, str(BENCH / "stragglers.py"), "--quick"],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert bench.returncode == 0, bench.stderr
    assert "steady, 35 % and more, right rank and phase: 4 of 4" in bench.stdout
    assert "of 1 windows of 1000 steps, 8000 rank-steps in all" in bench.stdout
    assert "ms of processor each" in bench.stdout
