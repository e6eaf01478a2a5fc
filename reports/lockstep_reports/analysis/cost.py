"""The cost of waiting, and the goodput statement: states that sum to the time of all ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from lockstep_catalogue.vocabulary import GOODPUT_STATES, PHASE_STATES
from lockstep_reports import nan_stats
from lockstep_reports.analysis.ends import Standstill
from lockstep_reports.arrays import Matrix
from lockstep_reports.recording.account import Account, total_of
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import Scores
from lockstep_reports.verdict.losses import Loss

SECONDS_PER_HOUR = 3600.0
# The other states need more than the step rows of one attempt.
_WHOLE_JOB_STATES = frozenset({"restore", "rework", "recovery", "idle", "held_after_end"})
STATES = tuple(state for state in GOODPUT_STATES if state not in _WHOLE_JOB_STATES)
"""The states that step rows show, in the order of the catalogue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What ranks waited for others.

    Attributes:
        lost_seconds: wall time that the job lost.
        lost_ratio: the same as a share of the covered time; None when none is covered.
        lost_gpu_seconds: lost wall time x world size: all ranks wait for the late one.
        lost_money: in the currency of the price; None without a price.
    """

    lost_seconds: float
    lost_ratio: float | None
    lost_gpu_seconds: float
    lost_money: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodput:
    """Where the time of all ranks went between their first and last recorded step.

    Attributes:
        seconds: by state, summed over the ranks; the states exclude each other.
        covered_seconds: sum of the states.
        ratio: productive share of it; None when nothing is covered.
    """

    seconds: dict[str, float]
    covered_seconds: float
    ratio: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """GPU time of one state, its share of all covered time, and its price; None without a price."""

    cause: str
    gpu_hours: float
    ratio: float
    money: float | None


def cost(
    steps: Steps, scores: Scores, losses: Sequence[Loss], price_per_gpu_hour: float | None = None
) -> Cost:
    """What the losses cost the whole job."""
    lost, covered = sum(loss.lost_seconds for loss in losses), scores.covered_seconds
    # Ranks without a readable page waited too.
    gpu_seconds = lost * steps.world_size
    money = None if price_per_gpu_hour is None else gpu_seconds * price_per_gpu_hour
    return Cost(
        lost_seconds=lost,
        lost_ratio=lost / covered if covered > 0 else None,
        lost_gpu_seconds=gpu_seconds,
        lost_money=None if money is None else money / SECONDS_PER_HOUR,
    )


def goodput(
    steps: Steps, account: Account, losses: Sequence[Loss], standstills: Sequence[Standstill] = ()
) -> Goodput:
    """Seconds of all ranks by state, by the account; what the host took is host_bound.

    Lost time is that of all ranks: the others wait, which is moved from communication to
    straggler_wait, and so is what the late rank took longer, from the state of its cause. So
    straggler_wait is ``Cost.lost_gpu_seconds`` of the ranks that were read. Time between rows, and
    time that no phase claims, is unknown. Start-up runs from the creation of each rank's page to
    its first recorded step. Standstills are lost time of all ranks, of which the steps hold
    nothing.
    """
    seconds: dict[str, float] = dict.fromkeys(STATES, 0.0)
    for owner, values in account.owners.items():
        seconds[_state_of(owner)] += float(np.nansum(steps.sum_over_columns(values)))
    for values in (account.waited, account.transfer):
        seconds["communication"] += float(np.nansum(steps.sum_over_columns(values)))
    _move_host_bound(steps, account, seconds)
    for loss in losses:
        _move_loss(loss, len(steps.members), seconds)
    stood = {
        is_final: len(steps.members) * sum(s.seconds for s in standstills if s.is_final == is_final)
        for is_final in (False, True)
    }
    seconds["hang"] = stood[False]
    seconds["unknown"] = max(0.0, _first_to_last_seconds(steps) - sum(seconds.values()))
    # After unknown: start-up lies before the first row, outside that span.
    seconds["startup"] = _startup_seconds(steps)
    # After the last step, as start-up is before the first.
    seconds["hang"] += stood[True]
    covered = sum(seconds.values())
    return Goodput(
        seconds=seconds,
        covered_seconds=covered,
        ratio=seconds["productive"] / covered if covered > 0 else None,
    )


def _state_of(owner: str | None) -> str:
    """The state of the time of an owner; of what nothing explains the work itself."""
    if owner is None:
        return "productive"
    return PHASE_STATES.get(owner, "host_bound")


def _move_loss(loss: Loss, num_ranks: int, seconds: dict[str, float]) -> None:
    """Moves a loss to straggler_wait; the states sum to the covered time, so from what they hold.

    Waits in an unmarked phase are no communication, and come out of the work that hides them.
    """
    waits = loss.lost_seconds * (num_ranks - loss.num_late)
    parts = [("communication", waits), (_state_of(loss.cause), loss.lost_seconds * loss.num_late)]
    parts += [("communication", loss.lost_seconds * num_ranks)]
    parts += [(state, num_ranks * loss.lost_seconds) for state in ("productive", "other")]
    missing = num_ranks * loss.lost_seconds
    for state, most in parts:
        moved = min(most, missing, seconds[state])
        seconds[state] -= moved
        seconds["straggler_wait"] += moved
        missing -= moved


def _move_host_bound(steps: Steps, account: Account, seconds: dict[str, float]) -> None:
    """Moves time in which a device waited for the host out of other, the rest out of the work."""
    if steps.host_bound is None:
        return
    held_up = np.nan_to_num(steps.host_bound)
    # What the host took from the process is host-bound already.
    if account.host:
        held_up = np.maximum(held_up - np.nan_to_num(total_of(account.host.values())), 0.0)
    # A row has no phases of it. After the optimizer nothing is launched: what lasts there is that.
    in_other = np.minimum(held_up, np.nan_to_num(steps.phases["other"]))
    from_other = min(float(steps.sum_over_columns(in_other).sum()), seconds["other"])
    from_work = min(
        float(steps.sum_over_columns(held_up).sum()) - from_other, seconds["productive"]
    )
    seconds["other"] -= from_other
    seconds["productive"] -= from_work
    seconds["host_bound"] += from_other + from_work


def causes(statement: Goodput, price_per_gpu_hour: float | None) -> tuple[Cause, ...]:
    """Cost of each state but the productive one, costliest first; states without time left out."""
    spent = [(state, seconds) for state, seconds in statement.seconds.items() if seconds > 0]
    return tuple(
        Cause(
            cause=state,
            gpu_hours=seconds / SECONDS_PER_HOUR,
            ratio=seconds / statement.covered_seconds,
            money=None
            if price_per_gpu_hour is None
            else seconds / SECONDS_PER_HOUR * price_per_gpu_hour,
        )
        for state, seconds in sorted(spent, key=lambda pair: -pair[1])
        if state != "productive"
    )


def _startup_seconds(steps: Steps) -> float:
    first = nan_stats.lowest(steps.start, axis=1)
    created = np.array([member.page_created_seconds or np.nan for member in steps.members])
    # A window, or a ring that has wrapped, does not begin with the first step.
    has_first_step = len(steps.numbers) > 0 and steps.numbers[0] <= 1
    return float(np.nansum(np.maximum(first - created, 0.0))) if has_first_step else 0.0


def _first_to_last_seconds(steps: Steps) -> float:
    """From the begin of the first to the end of the last recorded step, summed over the ranks."""
    begin = nan_stats.lowest(steps.start, axis=1)
    end = nan_stats.highest(steps.start + steps.sum_over_columns(steps.seconds), axis=1)
    return float(np.nansum(end - begin))


# The bootstrap of a change. Null hypothesis: both runs have the same median duration. Assumption:
# durations may be correlated over a few steps, as in a pause that drags on, and not over more than
# a block of 10. 1,000 resamples put 25 medians beyond each end of the 95 % interval. 20 steps make
# four blocks of 5; from fewer blocks no interval is drawn.
_BLOCK_STEPS, _NUM_RESAMPLES, _MIN_STEPS = 10, 1000, 20
# Bounds memory and time for runs of any length: the latest steps are resampled.
_MAX_STEPS = 20_000
_MAX_BATCH_VALUES = 1 << 16
_TAIL_RATIO = 0.025


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A duration before and after: medians over the steps, in seconds; None where unknown.

    Attributes:
        what: ``step`` for the whole step, or a phase (median over the ranks).
        ratio: after / before.
        low_seconds: lower end of the 95 % interval of the difference; ``high_seconds`` upper.
        effect: Cliff's delta, -1 (every step shorter than before) to 1 (every step longer).
    """

    what: str
    before_seconds: float | None
    after_seconds: float | None
    difference_seconds: float | None
    ratio: float | None
    low_seconds: float | None
    high_seconds: float | None
    effect: float | None

    @property
    def is_sure(self) -> bool:
        """Whether the interval excludes a difference of 0; False without an interval."""
        if self.low_seconds is None or self.high_seconds is None:
            return False
        return self.low_seconds > 0 or self.high_seconds < 0


def measure_change(what: str, before: Matrix, after: Matrix, seed: int = 0) -> Change:
    """How a duration changed, by seconds [steps] of two runs; NaN is left out.

    The seed of the bootstrap is fixed, so that equal recordings give equal reports.
    """
    # A step that some rank did not record has no duration.
    old, new = before[~np.isnan(before)], after[~np.isnan(after)]
    old_median = nan_stats.median_number(old)
    new_median = nan_stats.median_number(new)
    difference = ratio = low = high = effect = None
    if old_median is not None and new_median is not None:
        difference, ratio = new_median - old_median, new_median / old_median if old_median else None
    if min(len(old), len(new)) >= _MIN_STEPS:
        generator = np.random.default_rng(seed)
        differences = _resampled_medians(new, generator) - _resampled_medians(old, generator)
        low, high = np.quantile(differences, (_TAIL_RATIO, 1 - _TAIL_RATIO)).tolist()
        effect = cliffs_delta(old, new)
    return Change(
        what=what,
        before_seconds=old_median,
        after_seconds=new_median,
        difference_seconds=difference,
        ratio=ratio,
        low_seconds=low,
        high_seconds=high,
        effect=effect,
    )


def cliffs_delta(before: Matrix, after: Matrix) -> float:
    """Share of pairs in which the later duration is longer, minus the share in which it is shorter.

    -1 to 1; 0 when both are alike. Cliff (1993), by sorting in O(n log n) instead of all pairs.
    """
    ordered = np.sort(before)
    below = np.searchsorted(ordered, after, side="left")
    above = len(ordered) - np.searchsorted(ordered, after, side="right")
    return float((below - above).sum() / (len(before) * len(after)))


def _resampled_medians(values: Matrix, generator: np.random.Generator) -> Matrix:
    """Medians of samples of known seconds [steps], drawn in blocks of neighbours [resamples]."""
    values = values[-_MAX_STEPS:]
    # At least four blocks, or every sample would be nearly the recording itself.
    size = min(_BLOCK_STEPS, max(1, len(values) // 4))
    num_blocks = -(-len(values) // size)
    offsets = np.arange(size)
    # In batches: one call per sample is slow, and all at once would take 160 MB for 20,000 steps.
    batch = max(1, _MAX_BATCH_VALUES // (num_blocks * size))
    medians = []
    for first in range(0, _NUM_RESAMPLES, batch):
        num_samples = min(batch, _NUM_RESAMPLES - first)
        begins = generator.integers(0, len(values) - size + 1, (num_samples, num_blocks))
        samples = values[cast("NDArray[np.int64]", begins[:, :, None] + offsets)]
        medians.append(np.median(samples.reshape(num_samples, -1), axis=1))
    return np.concatenate(medians)
