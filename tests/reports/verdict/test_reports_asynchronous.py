"""Asynchronous training: a slow rank costs its own updates, or the others' time at a round only."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_reports.analysis.steps import StepAnalysis, analyse
from lockstep_reports.document.steps import document_steps
from lockstep_reports.recording.steps import Member, Steps, as_shared

from ..synthetic_job import Array, SyntheticJob, published, recording_of

_WORK = {"data": 0.004, "forward": 0.03, "backward": 0.05, "optimizer": 0.006}
_EXCHANGE_SECONDS = 0.01
_SAYS_OF_WAITING = ("kept all others waiting", "the others waited", "of wall time", "came last")


@dataclass(frozen=True, kw_only=True)
class ServedJob:
    """Workers of a parameter server, until the first has done its steps or a time is over.

    Attributes:
        slow: a rank, the phase and the seconds that it takes longer from a step on.
        ends_at: the step after which a rank is dead, by rank.
    """

    workers: int = 4
    num_steps: int = 200
    slow: tuple[int, str, float, int] | None = None
    ends_at: tuple[tuple[int, int], ...] = ()
    seed: int = 0

    def steps(self) -> Steps:
        draw, shape = np.random.default_rng(self.seed), (self.workers, self.num_steps)
        phases = {name: np.zeros(shape) for name in STEP_PHASES}
        for name, usual in _WORK.items():
            phases[name] += usual * draw.lognormal(0, 0.05, shape)
        phases["sync"] += _EXCHANGE_SECONDS * draw.lognormal(0, 0.3, shape)
        if self.slow is not None:
            rank, phase, longer, first = self.slow
            phases[phase][rank, first:] += longer
        seconds = np.sum(list(phases.values()), axis=0)
        ends = seconds.cumsum(axis=1)
        dead = np.zeros(shape, bool)
        for rank, last in self.ends_at:
            dead[rank, last:] = True
        over = ends > ends[:, -1].min() + 1e-9
        phases = {name: np.where(dead | over, np.nan, values) for name, values in phases.items()}
        seconds = np.where(dead | over, np.nan, seconds)
        return as_shared(
            Steps(
                job_id="served",
                attempt=0,
                world_size=self.workers,
                members=_workers(seconds),
                numbers=np.arange(1, self.num_steps + 1),
                seconds=seconds,
                phases=phases,
                start=1.79e9 + ends - seconds,
            )
        )


def _workers(seconds: Array) -> tuple[Member, ...]:
    rates = np.count_nonzero(~np.isnan(seconds), axis=1)
    return tuple(
        Member(
            rank=rank,
            node="n0",
            sync_rounds=int(own),
            independent_rounds=int(own),
            # Between two exchanges of its own, each other worker makes so many.
            staleness_steps=float((rates.sum() - own) / own),
        )
        for rank, own in enumerate(rates)
    )


def judged(steps: Steps) -> StepAnalysis:
    return analyse(recording_of(steps))


def text_of(analysis: StepAnalysis) -> str:
    document = document_steps(analysis)
    return " ".join([document.headline, document.story, *analysis.verdict.evidence])


@pytest.mark.parametrize("first", [0, 60])
@pytest.mark.parametrize("phase", ["data", "forward", "backward", "sync"])
def test_a_slow_worker_of_a_server_is_named_with_updates_it_loses(phase: str, first: int) -> None:
    steps = ServedJob(slow=(2, phase, 0.1, first)).steps()
    analysis = judged(steps)
    assert (analysis.verdict.kind, analysis.verdict.ranks) == ("rank", (2,))
    assert analysis.verdict.phase == phase
    updates = np.count_nonzero(~np.isnan(steps.seconds), axis=1)
    lost = (updates.max() - updates[2]) / (4 * updates.max())
    assert analysis.slow_lost_ratio == pytest.approx(lost, rel=0.1)
    text = text_of(analysis)
    assert "updates are lost" in text
    assert f"(staleness in steps): rank 2 {steps.members[2].staleness_steps:.1f}" in text


def test_a_worker_that_waits_less_for_cores_in_long_exchanges_is_not_slow() -> None:
    steps = ServedJob(num_steps=400).steps()
    waits = np.zeros_like(steps.seconds)
    waits[[0, 1, 3], 100:300] = 0.02
    steps.phases["sync"][:] += 0.2
    queued = replace(steps, seconds=steps.seconds + 0.2, run_queue=waits)
    assert judged(queued).verdict.ranks == ()


def test_nobody_is_charged_for_waiting_on_a_slow_worker_of_a_server() -> None:
    analysis = judged(ServedJob(slow=(1, "forward", 0.2, 20)).steps())
    assert analysis.verdict.ranks == (1,)
    assert analysis.goodput.seconds["straggler_wait"] == 0
    assert [words for words in _SAYS_OF_WAITING if words in text_of(analysis)] == []
    # What it cost is the time of one rank, and not of four.
    own_seconds = 0.2 * np.count_nonzero(~np.isnan(analysis.steps.seconds[1, 20:]))
    assert analysis.cost.lost_gpu_seconds == pytest.approx(own_seconds, rel=0.1)
    assert published(analysis)["verdict"]["ranks"] == [1]


def test_a_worker_of_a_server_that_dies_is_not_slow() -> None:
    analysis = judged(ServedJob(ends_at=((3, 90),)).steps())
    assert (analysis.verdict.kind, analysis.verdict.ranks) == ("nobody", ())


def test_workers_without_own_time_in_a_long_exchange_are_not_slow() -> None:
    job = ServedJob(workers=3, num_steps=120).steps()
    phases = {name: values.copy() for name, values in job.phases.items()}
    for name, values in phases.items():
        values[:, 100] = 5.0 if name == "sync" else 0.0
    seconds = np.sum(list(phases.values()), axis=0)
    start = 1.79e9 + seconds.cumsum(axis=1) - seconds
    analysis = judged(replace(job, phases=phases, seconds=seconds, start=start))
    assert analysis.verdict.ranks == ()


def test_a_slow_worker_that_trains_on_alone_is_compared_while_others_train() -> None:
    slow = ServedJob(workers=3, num_steps=600, slow=(2, "forward", 0.4, 200)).steps()
    # Others are done at their own last step, and the slow one goes on for twice as long by itself.
    phases = {name: values.copy() for name, values in slow.phases.items()}
    num_trained = np.count_nonzero(~np.isnan(slow.seconds[2]))
    for name, usual in {**_WORK, "sync": _EXCHANGE_SECONDS}.items():
        phases[name][2, num_trained:] = usual + (0.4 if name == "forward" else 0.0)
    seconds, start = slow.seconds.copy(), slow.start.copy()
    others = [name for name in phases if name not in {*_WORK, "sync"}]
    for name in others:
        phases[name][2, num_trained:] = 0.0
    seconds[2] = np.sum([values[2] for values in phases.values()], axis=0)
    start[2] = slow.start[2, 0] + seconds[2].cumsum() - seconds[2]
    analysis = judged(replace(slow, phases=phases, seconds=seconds, start=start))
    assert (analysis.verdict.kind, analysis.verdict.ranks) == ("rank", (2,))
    [episode] = analysis.episodes
    assert episode.start_step == pytest.approx(201, abs=5)
    assert episode.lost_seconds > 0.1 * 0.4 * (num_trained - 200)


def test_an_episode_goes_on_after_the_furthest_worker_has_ended() -> None:
    shape = (3, 400)
    paces = np.array([[0.05], [0.1], [0.1]]) * np.random.default_rng(4).lognormal(0, 0.05, shape)
    paces[2, 180:250] *= 1.8
    phases = {name: np.zeros(shape) for name in STEP_PHASES}
    phases |= {"forward": 0.8 * paces, "sync": 0.2 * paces}
    served = ServedJob(workers=3, num_steps=400).steps()
    start = 1.79e9 + paces.cumsum(axis=1) - paces
    analysis = judged(replace(served, phases=phases, seconds=paces, start=start))
    assert 2 in analysis.verdict.ranks
    assert all(episode.start_step <= episode.end_step for episode in analysis.episodes)


def test_two_slow_workers_of_a_server_are_named_the_slower_first() -> None:
    job = ServedJob(workers=6, slow=(4, "forward", 0.06, 0)).steps()
    seconds, forward = job.seconds.copy(), job.phases["forward"].copy()
    seconds[1, 50:] += 0.2
    forward[1, 50:] += 0.2
    analysis = judged(replace(job, seconds=seconds, phases=job.phases | {"forward": forward}))
    assert analysis.verdict.ranks == (1, 4)


def test_a_rank_that_makes_up_within_the_round_costs_nobody_anything() -> None:
    steps = SyntheticJob(num_steps=240, jitter=0.01, round_steps=8).steps()
    forward = steps.phases["forward"].copy()
    forward[2, 3::8] += 0.05
    forward[2, 4::8] -= 0.02
    forward[2, 5::8] -= 0.02
    forward[2, 6::8] -= 0.01
    analysis = judged(as_shared(replace(steps, phases=steps.phases | {"forward": forward})))
    assert analysis.verdict.kind == "nobody"


def test_a_rank_that_joins_no_round_any_more_is_missed_and_not_called_slow() -> None:
    steps = SyntheticJob(num_steps=244, jitter=0.01, round_steps=8).steps()
    gone = {name: values.copy() for name, values in steps.phases.items()}
    seconds, last = steps.seconds.copy(), steps.last_arrival.copy()
    for values in (*gone.values(), seconds, last):
        values[3, 100:] = np.nan
    analysis = judged(as_shared(replace(steps, phases=gone, seconds=seconds, last_arrival=last)))
    # Four steps after the last round are no round.
    assert int(analysis.steps.numbers[-1]) == 239
    assert (analysis.verdict.kind, analysis.verdict.ranks) == ("unknown", ())
    assert "rank 3: 18 of 30 are missing" in text_of(analysis)


def test_a_synchronous_job_is_left_as_it_is() -> None:
    steps = SyntheticJob().steps()
    assert as_shared(steps) is steps
    # Also with a word of shared parameters, where all steps meet.
    counted = replace(steps, members=tuple(replace(m, sync_rounds=9) for m in steps.members))
    assert as_shared(counted) is counted
