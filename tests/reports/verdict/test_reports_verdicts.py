"""The judge against jobs whose truth is known."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_device import Call, Collective, HostWork, Join, Kernel, Phase, SimulatedDevices

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_reports.analysis.signs import Span, Spans, activity, is_proof
from lockstep_reports.analysis.steps import analyse
from lockstep_reports.chance import measure_noise, tail_bound
from lockstep_reports.readers.node_series import SERIES, Trouble
from lockstep_reports.recording.align import align
from lockstep_reports.recording.recording import Points
from lockstep_reports.recording.steps import Steps, timed_steps
from lockstep_reports.search.score import score
from lockstep_reports.verdict.judge import judge
from lockstep_reports.verdict.own_times import judge_own_times
from lockstep_reports.verdict.verdict import Episode, Verdict, saved_by_repair

from ..corpus.made_run import Spent
from ..synthetic_job import Slow, SyntheticJob, recording_of
from .worker_tables import Fault, WorkerTable

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
    np.testing.assert_allclose(align(skewed.steps()).lag(), align(true.steps()).lag(), atol=1e-4)


def test_one_rank_or_few_steps_cannot_be_judged() -> None:
    assert judged(SyntheticJob(ranks=1).steps())[0].kind == "unknown"
    few, _ = judged(SyntheticJob(num_steps=12).steps())
    assert few.kind == "unknown"
    assert "12 steps" in few.evidence[0]


@settings(deadline=None)
@given(hits=st.integers(0, 40), share=st.sampled_from([0.0625, 0.25, 0.5]))
def test_the_bound_of_the_tail_is_never_too_small(hits: int, share: float) -> None:
    draws = np.random.default_rng(1).binomial(40, share, 20_000)
    seen = float(np.mean(draws >= hits))
    assert seen <= tail_bound(hits, 40, share) + 0.01
    assert tail_bound(40, 40, 0.5) == pytest.approx(0.5**40)


@pytest.mark.parametrize(("seconds", "named"), [(0.0125, (0,)), (0.0275, (0, 3))])
def test_a_second_slow_rank_is_named_when_it_cost_a_tenth_of_the_dearest(
    seconds: float, named: tuple[int, ...]
) -> None:
    slow = (
        Slow(rank=0, seconds=0.06, from_step=50, until_step=200),
        Slow(rank=3, phase="data", seconds=seconds, from_step=250, until_step=300),
    )
    verdict, episodes = judged(SyntheticJob(num_steps=400, slow=slow).steps())
    assert verdict.ranks == named
    assert [episode.ranks for episode in episodes] == [(0,), (3,)]


@pytest.mark.parametrize(
    ("shares", "phase"),
    [
        ({"data": 0.2, "forward": 0.2, "backward": 0.2, "optimizer": 0.2, "other": 0.2}, None),
        ({"data": 0.4, "forward": 0.3, "other": 0.3}, "data"),
    ],
)
def test_a_phase_is_named_when_it_explains_a_quarter_of_the_lateness(
    shares: dict[str, float], phase: str | None
) -> None:
    slow = tuple(
        Slow(rank=1, phase=name, seconds=0.06 * share, from_step=60)
        for name, share in shares.items()
    )
    verdict, episodes = judged(SyntheticJob(slow=slow).steps())
    assert (verdict.ranks, verdict.phase) == ((1,), phase)
    assert (episodes[0].phase_seconds is None) == (phase is None)


def _waited_for(share: float, seconds: float = 0.03) -> Steps:
    """Rank 1 works longer from step 60 on; only a share of that keeps the others waiting."""
    steps = SyntheticJob(slow=(Slow(rank=1, from_step=60, seconds=seconds * share),)).steps()
    backward = steps.phases["backward"].copy()
    backward[1, 60:] += seconds * (1 - share)
    return replace(steps, phases={**steps.phases, "backward": backward})


def test_longer_work_that_nobody_waits_for_names_nobody() -> None:
    verdict, episodes = judged(_waited_for(0.0))
    assert (verdict.kind, episodes) == ("nobody", ())


@pytest.mark.parametrize("share", [0.35, 0.7])
def test_longer_work_is_charged_as_far_as_it_is_waited_for(share: float) -> None:
    """What the others did not wait for cost them nothing."""
    verdict, episodes = judged(_waited_for(share))
    assert verdict.ranks == (1,)
    lost_seconds = 140 * 0.03
    assert sum(episode.lost_seconds for episode in episodes) == pytest.approx(
        share * lost_seconds, rel=0.15
    )


@pytest.mark.parametrize(("among", "kind"), [(98, "rare"), (115, "rank")])
def test_six_late_steps_name_when_chance_gathers_them_in_one_run_of_a_thousand(
    among: int, kind: str
) -> None:
    """However dear they are: the fewer steps there were, the easier they fall side by side."""
    slow = (Slow(rank=1, seconds=1.0, from_step=among - 12, until_step=among - 6),)
    verdict, _ = judged(SyntheticJob(num_steps=among, jitter=0, slow=slow).steps())
    assert verdict.kind == kind


def _bursts(*spans: tuple[int, int, float]) -> tuple[Slow, ...]:
    """Rank 2 slow in one phase again and again: first step, the one after the last, seconds."""
    return tuple(
        Slow(rank=2, seconds=seconds, from_step=begin, until_step=end)
        for begin, end, seconds in spans
    )


@pytest.mark.parametrize(
    ("bursts", "times"),
    [
        (((40, 60, 0.05), (120, 140, 0.05), (200, 220, 0.05)), 3),
        (((40, 60, 0.05), (120, 150, 0.05), (200, 240, 0.05)), 3),
        (((40, 55, 0.05), (200, 240, 0.1)), 2),
        (((40, 60, 0.05), (120, 140, 0.05), (200, 215, 0.0065)), 2),
    ],
    ids=["alike", "ever longer", "a fifth as dear", "a weak one beside"],
)
def test_a_rank_that_is_slow_again_and_again_is_told_as_often_as_it_was_dear(
    bursts: tuple[tuple[int, int, float], ...], times: int
) -> None:
    job = SyntheticJob(num_steps=400, jitter=0.005, slow=_bursts(*bursts))
    verdict, episodes = judged(job.steps())
    assert (verdict.ranks, len(episodes)) == ((2,), len(bursts))
    assert f"It happened {times} times in the recording." in verdict.evidence


def steps_of(seconds: np.ndarray) -> Steps:
    return timed_steps("job", list(range(len(seconds))), np.arange(seconds.shape[1]), seconds)


def judged_times(table: WorkerTable) -> tuple[Verdict, tuple[Episode, ...]]:
    return judge_own_times(steps_of(table.seconds()))


def test_noise_that_drifts_too_far_to_judge_is_said_to_do_so() -> None:
    drifting, _ = judged_times(WorkerTable(correlation=0.97, num_steps=1000, common=0.0))
    assert "drift" in " ".join(drifting.evidence)
    steady, _ = judged_times(WorkerTable(correlation=0.5, num_steps=1000, common=0.0))
    assert "drift" not in " ".join(steady.evidence)


def test_a_worker_slow_from_first_to_last_is_compared_with_the_faster_ones() -> None:
    fault = Fault(worker=2, first=0, steps=250, factor=1.3)
    verdict, episodes = judged_times(WorkerTable(levels=0.01, faults=(fault,)))
    assert verdict.ranks == (2,)
    assert "times the faster ranks' time from the first recorded step" in verdict.evidence[0]
    assert "its own usual" not in " ".join(verdict.evidence)
    assert episodes[0].late_seconds == pytest.approx(0.3, rel=0.15)


def test_who_turned_slow_but_is_never_the_slowest_costs_nothing_and_is_not_named() -> None:
    seconds = WorkerTable(levels=0.0).seconds()
    seconds[0] *= 0.6
    seconds[0, 150:] *= 1.5
    verdict, episodes = judge_own_times(steps_of(seconds))
    assert (verdict.kind, episodes) == ("nobody", ())


@pytest.mark.parametrize("factor", [1.5, 20.0])
def test_the_loss_of_several_slow_workers_is_what_repairing_them_would_save(factor: float) -> None:
    faults = tuple(Fault(worker=worker, first=100, steps=80, factor=factor) for worker in (1, 4, 7))
    table = WorkerTable(levels=0.0, faults=faults)
    seconds = table.seconds()
    healthy = replace(table, faults=()).seconds()
    verdict, episodes = judge_own_times(steps_of(seconds))
    assert set(verdict.ranks) == {1, 4, 7}
    saved = float((seconds.max(axis=0) - healthy.max(axis=0)).sum())
    lost = sum(episode.lost_seconds for episode in episodes)
    assert lost == pytest.approx(saved, rel=0.1)
    assert lost < seconds.max(axis=0).sum()


def test_layers_of_time_are_shared_by_those_who_hold_them_up() -> None:
    seconds = np.array([[4.0], [3.0], [1.0]])
    repaired = np.array([[1.0], [1.0], [1.0]])
    # One second is held up by the first alone, two by the first and the second.
    assert saved_by_repair(seconds, repaired).tolist() == [[2.0], [1.0], [0.0]]


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_the_noise_of_a_healthy_table_is_measured_as_it_was_made(correlation: float) -> None:
    table = WorkerTable(correlation=correlation, num_steps=2000, common=0.0, levels=0.0)
    noise = measure_noise(np.log(table.seconds()))
    assert noise is not None
    assert noise.correlation == pytest.approx(correlation, abs=0.05)
    assert noise.deviation == pytest.approx(0.02, rel=0.2)


@pytest.mark.parametrize("every", [5, 12, 20])
def test_a_worker_thrice_as_long_in_each_nth_step_is_named_as_slow_at_times(every: int) -> None:
    fault = Fault(worker=1, first=3, steps=397, factor=3.0, every=every)
    verdict, episodes = judged_times(WorkerTable(workers=4, num_steps=400, faults=(fault,)))
    assert verdict.ranks == (1,)
    assert "now and then" in verdict.evidence[0]
    assert sum(e.lost_seconds for e in episodes) == pytest.approx(2 * (397 // every + 1), rel=0.2)


EPISODE, RECORDED = Span(1000.0, 2000.0), Span(0.0, 3000.0)
SPANS = Spans(EPISODE, RECORDED, 70.0)


def series(*active: tuple[float, float], value: float = 0.5) -> Points:
    return [
        (float(at), value if any(begin <= at <= end for begin, end in active) else 0.0)
        for at in range(0, 3001, 10)
    ]


def test_a_sign_is_what_lies_above_its_limit_in_the_window() -> None:
    points = series((1200, 1400))
    assert activity(points, 0.1, EPISODE) == (Span(1200.0, 1400.0), 0.5)
    assert activity(points, 0.6, EPISODE) is None
    assert activity(points, 0.1, Span(1500.0, 1600.0)) is None


@pytest.mark.parametrize(
    ("points", "others", "proven"),
    [
        (series((1010, 2050)), series(), True),
        (series((1010, 2050)), series((1010, 2050)), False),  # the other node has it too
        (series((0, 3000)), series(), False),  # it was there all the time
        (series((1010, 1500)), series(), False),  # the slowness outlasts it
        (series((1500, 2010)), series(), False),  # the slowness came first
        (series((1000, 1020), (1990, 2000)), series(), False),  # the ends alone
        (series(), series(), False),
    ],
)
def test_only_a_sign_that_begins_and_ends_with_the_slowness_on_that_node_is_proof(
    points: Points, others: Points, *, proven: bool
) -> None:
    assert is_proof({"a": points, "b": others}, "a", 0.1, SPANS) is proven


def test_an_episode_that_fills_the_recording_proves_nothing() -> None:
    points = {"a": series((0, 3000)), "b": series()}
    assert not is_proof(points, "a", 0.1, Spans(RECORDED, RECORDED, 70.0))


@pytest.mark.parametrize("row", SERIES, ids=lambda row: row.cause)
def test_every_series_is_asked_for_by_node(row: Trouble) -> None:
    query = row.query(("n0", "n1"), "60s")
    assert 'node=~"n0|n1"' in query
    assert "by (node" in query


_FROM_STEP = 40


@dataclass(frozen=True, kw_only=True)
class DeviceJob(SyntheticJob):
    """Ranks that train at 40 ms a step on their devices and launch far ahead of them.

    Attributes:
        host_seconds: by which the host of rank 1 works longer in each step from the 40th on.
        kernel_ratio: of the kernels of its backward from then on.
    """

    num_steps: int = 120
    host_seconds: float = 0.0
    kernel_ratio: float = 1.0

    def spent(self) -> Spent:
        """What the devices went through."""
        ranks = SimulatedDevices(self.program, {"world": tuple(range(self.ranks))}).run()
        shape = (self.ranks, self.num_steps)
        phases = {phase: np.zeros(shape) for phase in STEP_PHASES}
        for number, rank in ranks.items():
            for step, phase, seconds in rank.device_seconds():
                phases[phase][number, step] += seconds
        before = phases["data"] + phases["forward"] + phases["backward"]
        start, _, arrival = self.run._meet(before, phases["optimizer"] + phases["other"])
        return Spent(start, phases, arrival, {})

    def program(self, rank: int) -> Iterator[Call]:
        draw = Random(rank)
        for step in range(self.num_steps):
            is_slow = rank == 1 and step >= _FROM_STEP
            yield Phase("data", step)
            yield HostWork(1e-3 + self.host_seconds * is_slow)
            yield Phase("forward", step)
            yield from (Kernel(1e-3 * draw.uniform(0.99, 1.01)) for _ in range(12))
            yield Phase("backward", step)
            ratio = self.kernel_ratio if is_slow else 1.0
            for _ in range(4):
                yield from (Kernel(1e-3 * ratio * draw.uniform(0.99, 1.01)) for _ in range(6))
                yield Collective("world", "all_reduce", 5e-4)
            yield Join("world")
            yield Phase("optimizer", step)
            yield Kernel(3e-3)
            yield Phase("other", step)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(
    ("host_seconds", "kernel_ratio", "named"),
    [(0.0, 1.0, ()), (0.03, 1.0, ()), (0.09, 1.0, (1,)), (0.0, 1.5, (1,))],
)
def test_who_is_slow_is_judged_by_the_devices(
    ranks: int, host_seconds: float, kernel_ratio: float, named: tuple[int, ...]
) -> None:
    job = DeviceJob(ranks=ranks, host_seconds=host_seconds, kernel_ratio=kernel_ratio)
    analysis = analyse(recording_of(job.steps()))
    assert analysis.verdict.ranks == named
    for episode in analysis.episodes:
        assert abs(episode.start_step - _FROM_STEP) <= 30
