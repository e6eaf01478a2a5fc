"""Faults that are small, short, shared or passed around; and jobs in which nobody is to blame."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_reports.chance import fisher_tail
from lockstep_reports.recording.align import align
from lockstep_reports.recording.steps import Member, Steps
from lockstep_reports.search.candidates import find_ends
from lockstep_reports.search.late import Search, collect_late, find_late
from lockstep_reports.search.score import score
from lockstep_reports.verdict.judge import judge
from lockstep_reports.verdict.verdict import Verdict

from ..synthetic_job import Slow, SyntheticJob


def verdict_of(steps: Steps) -> Verdict:
    return judge(steps, score(steps))[0]


@pytest.mark.parametrize("seed", range(5))
def test_a_hiccup_before_a_fault_of_the_same_rank_is_not_proven_by_the_fault(seed: int) -> None:
    margin = np.random.default_rng(seed).normal(-0.005, 0.002, (4, 500))
    margin[1, 150:155] += 0.04
    margin[1, 300:400] += 0.06
    search = Search(
        threshold=0.01, min_mean_loss=0.005, gap=40, weight=1.0, false_alarm_probability=1e-6
    )
    found = find_late(margin, search)
    assert [(stretch.first, stretch.last) for stretch in found] == [(300, 399)]


def test_hiccups_that_always_hit_the_same_rank_are_that_ranks() -> None:
    slow = tuple(
        Slow(rank=3, from_step=begin, until_step=begin + 3 + begin % 6)
        for begin in np.random.default_rng(1).integers(5, 1990, 33).tolist()
    )
    job = SyntheticJob(num_steps=2000, slow=slow).steps()
    _, episodes = judge(job, score(job))[:2]
    assert {episode.ranks for episode in episodes} == {(3,)}
    assert len(episodes) > 1


@pytest.mark.parametrize(
    ("axis", "named"),
    [("pp", "pipeline stage 1"), ("dp", "data-parallel replica 1"), ("ep", "expert group 1")],
)
def test_ranks_that_share_a_coordinate_are_named_by_it(axis: str, named: str) -> None:
    slow = tuple(Slow(rank=rank, from_step=60) for rank in (1, 4))
    steps = SyntheticJob(ranks=6, slow=slow).steps()
    members = tuple(Member(rank=rank, node="a", mesh={axis: rank % 3}) for rank in range(6))
    verdict = verdict_of(replace(steps, members=members))
    assert (verdict.kind, verdict.group, verdict.ranks) == ("group", named, (1, 4))


def test_a_rank_with_more_tokens_is_not_named_but_the_workload() -> None:
    steps = SyntheticJob(slow=(Slow(rank=1, phase="forward", from_step=60),)).steps()
    tokens = np.full_like(steps.seconds, 1000.0)
    tokens[1, 60:] = 1800.0
    assert verdict_of(steps).kind == "rank"
    verdict = verdict_of(replace(steps, tokens=tokens))
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("workload", (), "tokens")


@given(order=st.permutations(range(8)), factor=st.floats(0.1, 30), slow=st.integers(0, 7))
@settings(max_examples=20, deadline=None)
def test_order_of_ranks_scale_of_times_and_names_of_hosts_change_no_verdict(
    order: list[int], factor: float, slow: int
) -> None:
    steps = SyntheticJob(ranks=8, nodes=4, slow=(Slow(rank=slow, from_step=90),)).steps()
    changed = replace(
        steps,
        members=tuple(
            replace(steps.members[row], rank=at, node=f"host-{steps.members[row].node}x")
            for at, row in enumerate(order)
        ),
        seconds=steps.seconds[order] * factor,
        phases={name: seconds[order] * factor for name, seconds in steps.phases.items()},
        start=steps.start[order],
        last_arrival=steps.last_arrival[order],
        loss=steps.loss[order],
    )
    verdict, changed_verdict = verdict_of(steps), verdict_of(changed)
    assert (verdict.kind, verdict.ranks, verdict.phase) == ("rank", (slow,), "backward")
    assert (changed_verdict.kind, changed_verdict.ranks, changed_verdict.phase) == (
        "rank",
        (order.index(slow),),
        "backward",
    )


@given(st.integers(0, 8), st.integers(1, 30))
def test_the_chance_that_hits_gather_is_that_of_fishers_exact_test(hits: int, inside: int) -> None:
    draws = np.random.default_rng(1).hypergeometric(8, 32, inside, 20_000)
    assert np.mean(draws >= hits) <= fisher_tail(hits, inside, 8, 40) + 0.015


def test_late_steps_are_gathered_by_what_lies_between_them() -> None:
    at = np.array([3, 4, 5, 7, 40, 41, 90])
    assert list(collect_late(at, 0.5, 20)) == [(3, 7, 4), (40, 41, 2), (90, 90, 1)]


@pytest.mark.parametrize("rate", [0.0, 2e-5, -2e-5])
def test_a_clock_that_gains_on_the_others_is_found_and_changes_no_verdict(rate: float) -> None:
    job = SyntheticJob(ranks=8, nodes=4, num_steps=1500, slow=(Slow(rank=2, from_step=900),))
    steps = job.steps()
    gained = np.zeros_like(steps.start)
    gained[6:] = rate * (steps.start[6:] - steps.start[0, 0])
    drifting = replace(steps, start=steps.start + gained, last_arrival=steps.last_arrival + gained)
    assert verdict_of(drifting).ranks == verdict_of(steps).ranks == (2,)
    alignment = align(drifting)
    drift = alignment.drifts["node-3"]
    assert drift is not None
    assert drift == pytest.approx(rate, abs=1e-6)
    np.testing.assert_allclose(alignment.lag(), align(steps).lag(), atol=1e-4)


def test_what_was_fetched_ahead_is_told_with_the_step_in_which_the_workers_fell_behind() -> None:
    slow = (Slow(rank=1, phase="data", seconds=0.05, from_step=120),)
    steps = SyntheticJob(num_steps=400, slow=slow).steps()
    members = (replace(m, loader_workers=4, batches_ahead=8) for m in steps.members)
    verdict, [episode] = judge(steps := replace(steps, members=tuple(members)), score(steps))[:2]
    assert (verdict.ranks, verdict.phase) == ((1,), "data")
    assert "fetch up to 8 batches ahead" in " ".join(verdict.evidence)
    assert episode.start_step < 120
    assert len(episode.lost_by_step) == episode.columns.stop - episode.columns.start


@given(first=st.integers(20, 60), length=st.integers(20, 60), seed=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_the_ends_of_a_step_in_noise_are_found_from_any_part_of_it(
    first: int, length: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    values = draw.normal(0, 1, (1, 160))
    values[0, first : first + length] += 6
    found = find_ends(values, 2.0, (first + 5, first + length - 6), (0, 159))
    assert found == pytest.approx((first, first + length - 1), abs=2)


def test_a_late_step_or_two_at_the_end_do_not_keep_the_begin_of_a_fault_in_the_noise() -> None:
    steps = np.arange(1000)
    noise = np.random.default_rng(4).random(1000)
    lateness = np.where(steps < 300, 0.1 * (noise < 0.4), 1.0 * (noise < 0.6))
    lateness[[996, 997, 998, 999]] = 1.0, 0.1, 0.1, 0.0
    first, last = find_ends(lateness[None], 0.06, (160, 998), (0, 999))
    assert first == pytest.approx(300, abs=2)
    assert last == 998


def test_nothing_known_moves_no_end() -> None:
    assert find_ends(np.full((1, 50), np.nan), 1.0, (10, 20), (0, 49)) == (10, 20)


def test_what_grows_or_falls_to_a_lower_level_is_one_episode_while_it_is_late() -> None:
    steps, begin = np.arange(600), 200
    for seed in range(10):
        noise = np.abs(np.random.default_rng(seed).normal(0.0, 0.02, len(steps)))
        grows = noise + np.clip((steps - begin) / 400, 0.0, 1.0) * 0.5
        first, last = find_ends(grows[None], 0.06, (230, 599), (0, 599))
        assert begin < first < begin + 60  # it passes the threshold after 48 steps
        assert last == len(steps) - 1
        falls = noise + np.where(steps < 400, 0.5, 0.15) * (steps >= begin)
        assert find_ends(falls[None], 0.06, (begin, 599), (0, 599)) == (begin, 599)
