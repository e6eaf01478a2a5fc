"""A process that is stopped now and then: its first and last stop, wherever they fall."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep_reports.search.score import score
from lockstep_reports.search.stretches import WINDOW_STEPS, Stretch
from lockstep_reports.search.strikes import ends_of_strikes
from lockstep_reports.search.suspects import find_stopped
from lockstep_reports.verdict.episodes import drop_known_stops
from lockstep_reports.verdict.judge import judge

from .judged_jobs import TOLERANCE_RATIO, assert_begins_where_it_began, judged
from .timed_job import TimedJob


@pytest.mark.parametrize("step_seconds", [0.007, 0.02, 0.05])
def test_stops_in_collectives_belong_to_an_episode_whose_first_ones_no_work_shows(
    step_seconds: float,
) -> None:
    for seed in range(8):
        job = TimedJob(
            kind="stopped", ranks=2, transfer_share=1.5, pauses=0.01, step_seconds=step_seconds,
            num_steps=1200, from_step=360, seed=seed,
        )  # fmt: skip
        assert_begins_where_it_began(job)
        assert judged(job)[0].cause == "process_stopped"


def test_steps_that_are_read_together_with_a_stop_do_not_hide_it() -> None:
    for seed in range(3):
        job = TimedJob(
            kind="stopped", ranks=2, step_seconds=0.007, num_steps=1500, from_step=450, seed=seed
        )
        steps = job.steps()
        assert steps.blocked is not None
        struck = np.flatnonzero(steps.blocked[1] > 0.01)
        # Of one value for eight steps each longer one gets a part, and nobody waited in most.
        for column in struck[struck > 8]:
            steps.blocked[1, column - 6 : column] += 0.002
            steps.blocked[1, column] -= 0.012
        assert [found.rows for found in find_stopped(steps, score(steps), WINDOW_STEPS)] == [(1,)]
        verdict, episodes = judge(steps, score(steps))
        assert (verdict.ranks, verdict.cause) == ((1,), "process_stopped")
        assert min(e.start_step for e in episodes) == pytest.approx(450, abs=30)


def test_waits_of_all_ranks_that_come_before_and_after_alike_are_no_stops() -> None:
    steps = TimedJob(kind="stopped", step_seconds=0.02, num_steps=1200, from_step=600).steps()
    slow_network = np.random.default_rng(1).random(1200) < 0.05
    steps.phases["sync"][:, slow_network] += 0.04
    _, episodes = judge(steps, score(steps))
    assert episodes[0].start_step == pytest.approx(600, abs=TOLERANCE_RATIO * 1200)


def test_waits_that_come_alike_with_and_without_strikes_are_no_strikes() -> None:
    steps = TimedJob(kind="healthy", ranks=2, num_steps=600).steps()
    lateness = np.zeros(600)
    lateness[300:600:10] = 0.04
    steps.phases["sync"][:, 5:600:20] += 0.04
    stretch = Stretch(
        unit=1, first=300, last=590, threshold=0.005, num_late=30, num_last=30, num_known=291
    )
    assert ends_of_strikes(steps, lateness, stretch) == (300, 590)


def test_a_stop_is_known_to_an_episode_that_lost_little_else() -> None:
    _, [stop] = judged(TimedJob(kind="stopped", step_seconds=0.05))
    still = stop.stood_still_seconds or 0.0
    longer = replace(stop, stood_still_seconds=1.5 * still)
    with_more = replace(longer, lost_by_step=2.5 * stop.lost_by_step)
    assert drop_known_stops([stop], [longer]) == []
    assert drop_known_stops([stop], [with_more]) == [stop]
    assert drop_known_stops([stop], [replace(longer, ranks=(3,))]) == [stop]


def test_many_waits_near_the_last_of_a_few_strikes_leave_their_ends_as_they_are() -> None:
    steps = TimedJob(kind="healthy", ranks=2, num_steps=600).steps()
    lateness = np.zeros(600)
    lateness[[100, 400, 500]] = 0.04
    steps.phases["sync"][:, 470:500] += 0.04
    stretch = Stretch(
        unit=1, first=100, last=500, threshold=0.005, num_late=3, num_last=3, num_known=401
    )
    assert ends_of_strikes(steps, lateness, stretch) == (100, 500)


@pytest.mark.parametrize("length", [20, 60, 150])
@pytest.mark.parametrize("begin", [0, 250, 420, 800])
def test_a_slow_network_for_a_while_beside_stops_does_not_move_where_they_begin(
    begin: int, length: int
) -> None:
    job = TimedJob(kind="stopped", ranks=2, step_seconds=0.02, num_steps=1000, from_step=400)
    steps = job.steps()
    steps.phases["sync"][:, begin : begin + length] += 0.04
    _, episodes = judge(steps, score(steps))
    first = min(episode.start_step for episode in episodes if 1 in episode.ranks)
    assert first == pytest.approx(400, abs=TOLERANCE_RATIO * 1000)
