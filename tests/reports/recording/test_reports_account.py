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
from lockstep_reports.recording.align import align, drift_of
from lockstep_reports.recording.recording import Bound, Recording, Window, cut_before, cut_inside
from lockstep_reports.recording.steps import DurationHistogram, Steps, timed_steps
from lockstep_reports.search.score import score
from lockstep_reports.verdict.judge import judge

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


def test_sleep_in_a_phase_that_others_work_explains_is_waiting() -> None:
    slow = Slow(rank=1, phase="data", seconds=0.03, from_step=150)
    steps = SyntheticJob(num_steps=400, slow=(slow,)).steps()
    phases, blocked = dict(steps.phases), np.zeros_like(steps.seconds)
    hidden = np.minimum(phases["sync"], 0.03)
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


def test_begins_and_arrivals_of_steps_lie_on_the_common_clock() -> None:
    job = SyntheticJob(ranks=6, nodes=3, slow=(Slow(rank=2),))
    true = align(job.steps())
    skewed = align(replace(job, clock_skew={2: 0.03}).steps())
    np.testing.assert_allclose(skewed.start(), true.start(), rtol=0, atol=1e-6)
    np.testing.assert_allclose(skewed.lag(), true.lag(), rtol=0, atol=1e-6)
    assert skewed.offsets == pytest.approx({"node-0": 0.0, "node-1": 0.0, "node-2": 0.03}, abs=1e-6)


def test_ranks_of_one_node_share_its_clock() -> None:
    steps = SyntheticJob().steps()
    alignment = align(steps)
    assert (alignment.offsets, alignment.drifts) == ({"node-0": 0.0}, {"node-0": None})
    np.testing.assert_array_equal(alignment.start(), steps.start)


def test_the_residual_is_what_no_offset_explains_and_its_tail_is_told_beside_it() -> None:
    steps = SyntheticJob(ranks=6, nodes=3, clock_skew={1: 0.5}).steps()
    assert align(steps).residual_seconds == pytest.approx(0.0, abs=1e-6)
    late = np.zeros_like(steps.last_arrival)
    late[5, ::10] = 0.004
    alignment = align(replace(steps, last_arrival=steps.last_arrival + late))
    assert alignment.residual_seconds == pytest.approx(0.0, abs=1e-6)
    assert alignment.residual_p95_seconds == pytest.approx(0.004, abs=1e-6)


@pytest.mark.parametrize(
    ("count", "spacing", "is_measured"), [(90, 1.5, True), (89, 1.5, False), (90, 0.9, False)]
)
def test_a_drift_needs_thirty_collectives_in_each_third_and_a_minute_between_them(
    count: int, spacing: float, is_measured: bool
) -> None:
    time = np.arange(count, dtype=np.float64) * spacing
    assert drift_of(time, 1e-4 * time) == (pytest.approx(1e-4) if is_measured else None)


@pytest.mark.parametrize(("rate", "drift"), [(1e-6, 0.0), (1e-4, 1e-4)])
def test_a_drift_that_noise_could_make_counts_as_none(rate: float, drift: float) -> None:
    time = np.arange(300, dtype=np.float64)
    noise = 0.002 * (-1.0) ** time
    assert drift_of(time, rate * time + noise) == pytest.approx(drift, rel=0.05, abs=0)


def test_what_is_unknown_has_no_drift() -> None:
    time = np.arange(300, dtype=np.float64)
    assert drift_of(time, np.full(300, np.nan)) is None


WINDOW = Window(first=Bound(step=100), last=Bound(step=299))


def recording_with_tokens() -> Recording:
    """Rank 1 is slow from step 160 to 259, and has as many more tokens in the same steps."""
    slow = Slow(rank=1, phase="forward", seconds=0.05, from_step=160, until_step=260)
    steps = SyntheticJob(num_steps=400, slow=(slow,)).steps()
    tokens = np.full_like(steps.seconds, 1000.0)
    tokens[1, 160:260] = 3000.0
    return recording_of(replace(steps, tokens=tokens, sequence_squares=tokens**2))


def test_a_window_keeps_the_tokens_of_its_steps() -> None:
    steps = cut_inside(recording_with_tokens(), WINDOW).steps
    assert steps.tokens is not None
    assert steps.sequence_squares is not None
    assert steps.tokens.shape == steps.sequence_squares.shape == steps.seconds.shape
    slow = steps.numbers[steps.tokens[1] > 1000.0]
    assert (slow.min(), slow.max()) == (160, 259)


def test_uneven_data_in_a_window_blames_the_workload_and_no_rank() -> None:
    steps = cut_inside(recording_with_tokens(), WINDOW).steps
    verdict, _ = judge(steps, score(steps))[:2]
    assert (verdict.kind, verdict.cause) == ("workload", "tokens")


def test_what_lies_before_a_window_keeps_its_own_tokens() -> None:
    steps = cut_before(recording_with_tokens(), WINDOW).steps
    assert steps.tokens is not None
    assert steps.tokens.shape == steps.seconds.shape == (4, 100)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("counts", "share", "quantile"),
    [
        ([[0], [10], [10]], 0.5, 1.5),
        ([[4], [8], [8]], 0.5, 1.0),
        ([[8], [8], [8]], 0.25, 0.25),
        ([[1, 7], [2, 8], [2, 8]], 0.8, 1.0),
        ([[1, NAN], [2, NAN], [2, NAN]], 1.0, 2.0),
        ([[1], [1], [100]], 0.95, None),
        ([[0], [0], [0]], 0.95, None),
        ([[NAN], [NAN], [NAN]], 0.95, None),
    ],
)
def test_a_quantile_lies_within_its_bucket_and_never_above_the_last_bound(
    counts: list[list[float]], share: float, quantile: float | None
) -> None:
    durations = DurationHistogram(bounds=np.array([1.0, 2.0, INF]), counts=np.array(counts))
    assert durations.quantile(share) == quantile
