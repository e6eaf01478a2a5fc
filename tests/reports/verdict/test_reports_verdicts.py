"""The judge against jobs whose truth is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_reports.analysis.cost import cost
from lockstep_reports.chance import tail_bound
from lockstep_reports.recording.align import align
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import score
from lockstep_reports.verdict.judge import judge
from lockstep_reports.verdict.verdict import Episode, Verdict

from ..synthetic_job import Slow, SyntheticJob, losses_of

NOISES = ("uniform", "normal", "lognormal", "exponential")


def judged(steps: Steps) -> tuple[Verdict, tuple[Episode, ...]]:
    return judge(steps, score(steps))[:2]


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("ranks", [2, 8])
def test_a_rank_that_is_always_last_by_little_is_not_named(ranks: int, noise: str) -> None:
    for seed in range(5):
        slow = Slow(rank=1, seconds=0.0045, from_step=0)
        job = SyntheticJob(
            ranks=ranks, num_steps=1000, noise=noise, jitter=0.02, slow=(slow,), seed=seed
        )
        assert judged(job.steps())[0].kind == "nobody"


@given(
    rank=st.integers(0, 7),
    node=st.integers(0, 1),
    skew=st.sampled_from([-0.03, 0.03]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None)
def test_a_skewed_clock_changes_no_verdict_and_is_found(
    rank: int, node: int, skew: float, seed: int
) -> None:
    slow = (Slow(rank=rank, from_step=60, until_step=120),)
    true = SyntheticJob(ranks=8, nodes=2, slow=slow, seed=seed)
    skewed = SyntheticJob(ranks=8, nodes=2, slow=slow, seed=seed, clock_skew={node: skew})
    result, skewed_result = judged(true.steps()), judged(skewed.steps())
    assert result[0] == skewed_result[0]
    assert [e.start_step for e in result[1]] == [e.start_step for e in skewed_result[1]]
    offsets = align(skewed.steps()).offsets
    ahead = offsets[f"node-{node}"] - offsets[f"node-{1 - node}"]
    assert ahead == pytest.approx(skew, abs=1e-4)
    np.testing.assert_allclose(align(skewed.steps()).lag, align(true.steps()).lag, atol=1e-4)


def test_one_rank_or_few_steps_cannot_be_judged() -> None:
    assert judged(SyntheticJob(ranks=1).steps())[0].kind == "unknown"
    few, _ = judged(SyntheticJob(num_steps=12).steps())
    assert few.kind == "unknown"
    assert "12 steps" in few.evidence[0]


def test_the_loss_is_the_time_injected() -> None:
    slow = Slow(rank=1, seconds=0.05, from_step=100, until_step=200)
    steps = SyntheticJob(num_steps=300, jitter=0.005, slow=(slow,)).steps()
    scores = score(steps)
    _, episodes = judge(steps, scores)[:2]
    lost = cost(steps, scores, losses_of(steps, episodes), price_per_gpu_hour=3.6)
    assert lost.lost_seconds == pytest.approx(100 * 0.05, rel=0.05)
    assert lost.lost_gpu_seconds == pytest.approx(4 * lost.lost_seconds)
    assert lost.lost_money == pytest.approx(lost.lost_gpu_seconds / 1000)


@settings(deadline=None)
@given(hits=st.integers(0, 40), share=st.sampled_from([0.0625, 0.25, 0.5]))
def test_the_bound_of_the_tail_is_never_too_small(hits: int, share: float) -> None:
    draws = np.random.default_rng(1).binomial(40, share, 20_000)
    seen = float(np.mean(draws >= hits))
    assert seen <= tail_bound(hits, 40, share) + 0.01
    assert tail_bound(40, 40, 0.5) == pytest.approx(0.5**40)
