"""A recording that cannot show a slow rank is judged unknown, with the reason; never nobody."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep_reports.readers.pages import read_pages
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import score
from lockstep_reports.top.table import RankRow, why_unobserved
from lockstep_reports.verdict.judge import judge
from lockstep_reports.verdict.verdict import Verdict

from ..synthetic_job import Slow, SyntheticJob


def verdict_of(steps: Steps) -> Verdict:
    return judge(steps, score(steps))[0]


def with_phases(steps: Steps, **seconds: np.ndarray) -> Steps:
    phases = {**steps.phases, **seconds}
    return replace(steps, phases=phases, seconds=np.sum(list(phases.values()), axis=0))


def without_waits(steps: Steps) -> Steps:
    """The loop's waiting is inside its backward, as with an unknown instrumentation point."""
    hidden = steps.phases["backward"] + steps.phases["sync"]
    return with_phases(steps, backward=hidden, sync=np.zeros_like(hidden))


def unclaimed(steps: Steps) -> Steps:
    return with_phases(steps, other=steps.phases["other"] + 0.05)


def by_the_host(steps: Steps) -> Steps:
    members = tuple(replace(member, gpu_uuid=f"GPU-{member.rank}") for member in steps.members)
    return replace(steps, members=members, by_device=np.zeros_like(steps.seconds))


def without_a_rank(steps: Steps) -> Steps:
    return replace(steps, world_size=steps.world_size + 1)


def without_rows(steps: Steps) -> Steps:
    seconds = steps.seconds.copy()
    seconds[1, 50:120] = np.nan
    return replace(steps, seconds=seconds)


BLIND = {
    "No rank waited for the others": without_waits,
    "hidden in backward, and a late rank would not show. Put `with monitor.phase": without_waits,
    "lies in no marked phase": unclaimed,
    "recorded times of the host": by_the_host,
    "left no readable page": without_a_rank,
    "left no row of many steps": without_rows,
}


@pytest.mark.parametrize("reason", BLIND)
def test_what_cannot_show_a_slow_rank_is_unknown_with_the_reason(reason: str) -> None:
    steps = SyntheticJob().steps()
    assert verdict_of(steps).kind == "nobody"
    verdict = verdict_of(BLIND[reason](steps))
    assert (verdict.kind, verdict.ranks) == ("unknown", ())
    assert reason in verdict.evidence[0]


def test_a_backward_forty_per_cent_slower_whose_waits_are_hidden_is_not_called_nobody() -> None:
    steps = without_waits(SyntheticJob(slow=(Slow(rank=1, seconds=0.018),)).steps())
    assert verdict_of(steps).kind == "unknown"


@pytest.mark.parametrize("reason", ["left no readable page", "recorded times of the host"])
def test_a_slow_rank_that_shows_is_named_all_the_same(reason: str) -> None:
    steps = SyntheticJob(slow=(Slow(rank=1),)).steps()
    assert verdict_of(BLIND[reason](steps)).ranks == (1,)


def test_times_of_the_device_are_not_doubted() -> None:
    steps = by_the_host(SyntheticJob().steps())
    seen = replace(steps, by_device=np.ones_like(steps.seconds))
    assert verdict_of(seen).kind == "nobody"


def test_two_who_are_slow_in_different_phases_at_once_cost_the_job_once() -> None:
    slow = (
        Slow(rank=0, phase="data", seconds=0.05, from_step=60),
        Slow(rank=2, phase="forward", seconds=0.05, from_step=60),
    )
    steps = SyntheticJob(slow=slow).steps()
    _, episodes = judge(steps, score(steps))[:2]
    assert sum(episode.lost_seconds for episode in episodes) <= 0.05 * 140 * 1.1


def rank_row(rank: int, wait_seconds: float, other_seconds: float) -> RankRow:
    return RankRow(
        job_id="j", rank=rank, node="n", state="training", phase="forward", step=7,
        lag_seconds=0.0, wait_seconds=wait_seconds, step_seconds=0.1, tokens_per_second=None,
        loss=None, quiet_seconds=0.1, other_seconds=other_seconds,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wait_seconds", "other_seconds", "reason"),
    [(0.0, 0.001, "no rank waits"), (0.01, 0.04, "40% of the step"), (0.01, 0.001, None)],
)
def test_the_live_view_says_when_a_slow_rank_would_not_show(
    wait_seconds: float, other_seconds: float, reason: str | None
) -> None:
    notes = why_unobserved([rank_row(rank, wait_seconds, other_seconds) for rank in range(2)])
    assert len(notes) == (reason is not None)
    assert reason is None or reason in notes[0]
    assert not why_unobserved([rank_row(0, wait_seconds, other_seconds)])


def test_pages_of_the_host_on_a_gpu_are_read_as_such(page_root: Path) -> None:
    job = SyntheticJob(job_id="j", num_steps=30).write(page_root)
    steps = read_pages(job / "0")[0]
    assert steps.by_device is not None
    assert np.nanmax(steps.by_device) == 0
