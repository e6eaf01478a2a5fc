"""The judge against jobs whose truth is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_reports.analysis.cost import cost, goodput
from lockstep_reports.recording.align import align
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.chance import tail_bound
from lockstep_reports.search.score import score
from lockstep_reports.verdict.judge import judge
from lockstep_reports.verdict.verdict import Episode, Verdict

from ..matrices import matrix
from ..synthetic_job import Slow, SyntheticJob, losses_of

HEALTHY_SEEDS = 6
NOISES = ("uniform", "normal", "lognormal", "exponential")


def judged(steps: Steps) -> tuple[Verdict, tuple[Episode, ...]]:
    return judge(steps, score(steps))[:2]


@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer"])
@pytest.mark.parametrize("ranks", [2, 4, 16])
@pytest.mark.parametrize("noise", NOISES)
def test_a_slow_rank_is_named_with_its_phase_and_its_first_and_last_step(
    noise: str, ranks: int, phase: str
) -> None:
    for seed in range(4):
        draw = np.random.default_rng(seed)
        rank, begin = int(draw.integers(ranks)), int(draw.integers(10, 140))
        slow = Slow(rank=rank, phase=phase, from_step=begin, until_step=begin + 40)
        jitter = 0.01 if noise == "lognormal" else 0.03
        job = SyntheticJob(ranks=ranks, noise=noise, jitter=jitter, slow=(slow,), seed=seed)
        verdict, episodes = judged(job.steps())
        assert (verdict.kind, verdict.ranks, verdict.phase) == ("rank", (rank,), phase)
        assert len(episodes) == 1
        assert abs(episodes[0].start_step - begin) <= 10
        assert abs(episodes[0].end_step - (begin + 39)) <= 10


@pytest.mark.parametrize("seed", matrix(range(HEALTHY_SEEDS), 1))
def test_healthy_noise_of_any_kind_names_nobody(seed: int) -> None:
    rank_steps, alarms = 0, []
    for noise in NOISES:
        for jitter in (0.01, 0.05, 0.2):
            for ranks in (2, 3, 4, 8, 16):
                job = SyntheticJob(
                    ranks=ranks, num_steps=500, noise=noise, jitter=jitter, seed=seed
                )
                rank_steps += ranks * job.num_steps
                if judged(job.steps())[0].kind != "nobody":
                    alarms.append(job)
    print(f"{len(alarms)} false alarms in {rank_steps:,} rank-steps")  # noqa: T201  # the measured rate
    assert HEALTHY_SEEDS * rank_steps > 1_000_000
    assert not alarms


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("ranks", [2, 8])
def test_a_rank_that_is_always_last_by_little_is_not_named(ranks: int, noise: str) -> None:
    for seed in range(5):
        slow = Slow(rank=1, seconds=0.0045, from_step=0)
        job = SyntheticJob(
            ranks=ranks, num_steps=1000, noise=noise, jitter=0.02, slow=(slow,), seed=seed
        )
        assert judged(job.steps())[0].kind == "nobody"


@pytest.mark.parametrize("every", [5, 10, 50])
def test_checkpoints_of_one_rank_name_nobody(every: int) -> None:
    verdict, _ = judged(SyntheticJob(num_steps=400, checkpoint_every=every).steps())
    assert verdict.kind == "planned"


def test_checkpoints_on_another_rank_hide_no_slow_rank_and_cost_nothing() -> None:
    slow = Slow(rank=2, from_step=100, until_step=200)
    plain, _ = judged(SyntheticJob(num_steps=300, slow=(slow,)).steps())
    verdict, episodes = judged(
        SyntheticJob(num_steps=300, slow=(slow,), checkpoint_every=10).steps()
    )
    assert (verdict.ranks, verdict.phase) == (plain.ranks, plain.phase) == ((2,), "backward")
    assert episodes[0].lost_seconds <= 100 * slow.seconds


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


def test_a_node_whose_ranks_are_late_together_is_a_group() -> None:
    slow = tuple(Slow(rank=rank, phase="data", from_step=80, until_step=160) for rank in (2, 3))
    verdict, episodes = judged(SyntheticJob(ranks=8, nodes=4, slow=slow).steps())
    assert (verdict.kind, verdict.group, verdict.ranks) == ("group", "node-1", (2, 3))
    assert verdict.phase == "data"
    assert abs(episodes[0].start_step - 80) <= 10


def test_noise_that_drags_on_names_nobody() -> None:
    for seed in range(20):
        job = SyntheticJob(num_steps=500, noise="dragging", jitter=0.1, seed=seed)
        assert judged(job.steps())[0].kind == "nobody"


def test_a_slow_rank_is_named_in_a_run_without_any_noise() -> None:
    verdict, _ = judged(SyntheticJob(jitter=0, slow=(Slow(rank=3),)).steps())
    assert verdict.ranks == (3,)


def test_two_slow_ranks_one_after_the_other_are_two_episodes() -> None:
    slow = (
        Slow(rank=0, from_step=50, until_step=130),
        Slow(rank=3, phase="data", from_step=200, until_step=260),
    )
    verdict, episodes = judged(SyntheticJob(num_steps=300, slow=slow).steps())
    assert [(e.ranks, e.phase) for e in episodes] == [((0,), "backward"), ((3,), "data")]
    assert verdict.ranks == (0, 3)
    assert "happened" not in " ".join(verdict.evidence)


def test_who_cost_next_to_nothing_beside_the_slow_ranks_is_an_episode_and_not_named() -> None:
    slow = (
        Slow(rank=0, from_step=50, until_step=200),
        Slow(rank=3, phase="data", seconds=0.02, from_step=240, until_step=250),
    )
    verdict, episodes = judged(SyntheticJob(num_steps=300, slow=slow).steps())
    assert {e.ranks for e in episodes} == {(0,), (3,)}
    assert verdict.ranks == (0,)


def test_a_rank_that_is_slow_to_the_end_is_still_going() -> None:
    _, episodes = judged(SyntheticJob(slow=(Slow(rank=1, from_step=150),)).steps())
    assert episodes[0].ongoing
    assert episodes[0].end_step == 199


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


def test_the_goodput_statement_adds_up_to_the_covered_time() -> None:
    steps = SyntheticJob(slow=(Slow(rank=1),), checkpoint_every=50).steps()
    _, episodes = judged(steps)
    account = goodput(steps, losses_of(steps, episodes))
    assert sum(account.seconds.values()) == pytest.approx(account.covered_seconds)
    assert account.seconds["straggler_wait"] > 0
    assert account.seconds["unknown"] < 0.05 * account.covered_seconds


@settings(deadline=None)
@given(hits=st.integers(0, 40), share=st.sampled_from([0.0625, 0.25, 0.5]))
def test_the_bound_of_the_tail_is_never_too_small(hits: int, share: float) -> None:
    draws = np.random.default_rng(1).binomial(40, share, 20_000)
    seen = float(np.mean(draws >= hits))
    assert seen <= tail_bound(hits, 40, share) + 0.01
    assert tail_bound(40, 40, 0.5) == pytest.approx(0.5**40)
