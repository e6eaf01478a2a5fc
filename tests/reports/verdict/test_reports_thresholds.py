"""The judge's limits: each is held from both sides by a job whose truth is known."""

from dataclasses import replace

import pytest

from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import score
from lockstep_reports.verdict.judge import judge
from lockstep_reports.verdict.verdict import Episode, Verdict

from ..synthetic_job import Slow, SyntheticJob


def judged(steps: Steps) -> tuple[Verdict, tuple[Episode, ...]]:
    return judge(steps, score(steps))[:2]


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
