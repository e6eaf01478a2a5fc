"""Each second of a rank's step has one owner, and what ranks waited for sums to what was lost."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_reports.analysis.steps import StepAnalysis, analyse
from lockstep_reports.document.headline import findings
from lockstep_reports.recording.account import Account, divide
from lockstep_reports.recording.steps import Steps, timed_steps

from ..synthetic_job import Slow, SyntheticJob, recording_of

MEASURES = ("run_queue", "blocked", "stopped", "collection")


def parts_of(account: Account) -> list[Any]:
    return [*account.owners.values(), account.waited, account.transfer, account.unknown]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    ranks=st.integers(1, 5),
    measured=st.sets(st.sampled_from(MEASURES)),
    unknown_share=st.sampled_from([0.0, 0.2, 0.9]),
    overlap=st.floats(0.5, 1.5),
)
def test_the_owners_of_a_step_sum_to_it_whatever_was_recorded(
    seed: int, ranks: int, measured: set[str], unknown_share: float, overlap: float
) -> None:
    draw = np.random.default_rng(seed)
    seconds = draw.exponential(0.1, (ranks, 40))
    phases = draw.dirichlet(np.ones(len(STEP_PHASES)), (ranks, 40)) * seconds[..., None] * overlap
    seconds[draw.random(seconds.shape) < unknown_share] = np.nan
    steps = timed_steps("any", list(range(ranks)), np.arange(40), seconds)
    named = {name: phases[..., index] for index, name in enumerate(STEP_PHASES)}
    named["data"] = np.where(draw.random(seconds.shape) < unknown_share, np.nan, named["data"])
    extras: dict[str, Any] = {name: draw.exponential(0.05, seconds.shape) for name in measured}
    account = divide(replace(steps, phases=named, **extras))
    total = np.sum(parts_of(account), axis=0)
    np.testing.assert_allclose(total, seconds, atol=1e-12)
    for part in parts_of(account):
        assert np.nanmin(np.nan_to_num(part)) >= -1e-12
    assert len(account.missing) == len({"run_queue", "stopped", "collection"} - measured)


def later(values: Any) -> Any:
    """What happens after the last collective of a step keeps the others waiting in the next."""
    return np.pad(values, ((0, 0), (1, 0)))[:, :-1]


def lengthened(steps: Steps, phase: str, seconds: Any, *, is_after: bool = False) -> Steps:
    """The steps with so much more of a phase, for which the others wait."""
    arrivals = later(seconds) if is_after else seconds
    waits = arrivals.max(axis=0) - arrivals
    phases = dict(steps.phases)
    phases[phase] = phases[phase] + seconds
    phases["sync"] = phases["sync"] + waits
    return replace(steps, phases=phases, seconds=steps.seconds + seconds + waits)


def analysed(steps: Steps) -> StepAnalysis:
    return analyse(recording_of(steps))


HEALTHY = SyntheticJob(num_steps=400, jitter=0.01).steps()
SHAPE = HEALTHY.seconds.shape


def stalls(probability: float, seconds: float, seed: int = 3) -> Any:
    return (np.random.default_rng(seed).random(SHAPE) < probability) * seconds


def on_rank(rank: int, columns: Any, seconds: float) -> Any:
    values = np.zeros(SHAPE)
    values[rank, columns] = seconds
    return values


def collecting(probability: float, seconds: float) -> Steps:
    pauses = stalls(probability, seconds)
    return replace(lengthened(HEALTHY, "backward", pauses), collection=pauses)


@pytest.mark.parametrize(
    ("steps", "kind", "cause", "words"),
    [
        (collecting(0.1, 0.1), "in_turns", "garbage_collection", "paused to collect garbage (all"),
        (collecting(0.4, 0.3), "in_turns", "garbage_collection", "paused to collect garbage (all"),
        (lengthened(HEALTHY, "eval", on_rank(0, np.s_[::20], 0.8), is_after=True), "planned",
         "eval", "evaluations of rank 0, every 20 steps"),
        (lengthened(HEALTHY, "checkpoint", on_rank(2, [50, 170, 333], 4.0)), "planned",
         "checkpoint", "checkpoints of rank 2"),
        (lengthened(HEALTHY, "data", stalls(0.03, 0.4)), "in_turns", "loader", "loaded data (all"),
        (lengthened(HEALTHY, "data", on_rank(1, [77, 201], 3.0)), "rare", "loader",
         "loaded data (rank 1, in 2 steps)"),
    ],
)  # fmt: skip
def test_what_no_rank_alone_cost_has_a_verdict_and_its_share_of_the_run(
    steps: Steps, kind: str, cause: str, words: str
) -> None:
    analysis = analysed(steps)
    assert (analysis.verdict.kind, analysis.verdict.cause) == (kind, cause)
    first = next(findings(analysis))
    assert first.severity == "slow"
    assert words in first.sentence
    longer = float(steps.seconds[0].sum())
    truth = 1 - float(HEALTHY.seconds[0].sum()) / longer
    assert analysis.cost.lost_ratio == pytest.approx(truth, abs=0.02 if truth < 0.5 else 0.15)


@pytest.mark.parametrize("noise", ["uniform", "normal", "lognormal", "exponential", "dragging"])
def test_a_healthy_run_loses_what_healthy_runs_lose(noise: str) -> None:
    analysis = analysed(SyntheticJob(noise=noise, num_steps=600).steps())
    assert analysis.verdict.kind == "nobody"
    assert (analysis.cost.lost_ratio or 0.0) < 0.01


def test_a_peer_that_got_faster_costs_nobody_anything() -> None:
    phases = {name: values.copy() for name, values in HEALTHY.phases.items()}
    phases["data"][0, 100:200] -= 0.008
    phases["sync"][0, 100:200] += 0.008
    analysis = analysed(replace(HEALTHY, phases=phases))
    assert (analysis.verdict.ranks, analysis.cost.lost_seconds) == ((), 0.0)


@pytest.mark.parametrize("is_waiting_recorded", [True])
def test_sleep_in_a_phase_that_others_work_explains_is_waiting(
    *, is_waiting_recorded: bool
) -> None:
    slow = Slow(rank=1, phase="data", seconds=0.03, from_step=150)
    steps = SyntheticJob(num_steps=400, slow=(slow,)).steps()
    phases, blocked = dict(steps.phases), np.zeros_like(steps.seconds)
    hidden = np.minimum(phases["sync"], 0.03) if is_waiting_recorded else phases["sync"]
    phases["sync"], phases["optimizer"] = phases["sync"] - hidden, phases["optimizer"] + hidden
    blocked += hidden + phases["data"]
    analysis = analysed(replace(steps, phases=phases, blocked=blocked))
    assert (analysis.verdict.ranks, analysis.verdict.phase) == ((1,), "data")


def test_lost_time_is_the_same_in_the_losses_the_goodput_and_the_money() -> None:
    steps = lengthened(collecting(0.1, 0.1), "eval", on_rank(0, np.s_[::40], 0.8))
    analysis = analysed(lengthened(steps, "forward", on_rank(2, np.s_[200:], 0.03)))
    total = sum(loss.lost_seconds for loss in analysis.losses)
    assert len(analysis.losses) >= 3
    assert analysis.cost.lost_seconds == pytest.approx(total)
    waiting = analysis.goodput.seconds["straggler_wait"]
    assert waiting == pytest.approx(analysis.cost.lost_gpu_seconds, rel=0.01)
