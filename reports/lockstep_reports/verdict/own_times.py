"""Judges ranks whose step times are their own: each against its own past, not against the median.

Workers may differ for good with nobody to blame, and half of them may turn slow at once. So each
is compared with its own low level, and what slows all in the same steps is the workload's. Only a
rank that is slow from the first step to the last is compared with the faster ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Matrix
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.chance import SIGMAS_PER_MEDIAN, independence, measure_noise
from lockstep_reports.search.heights import find_high
from lockstep_reports.search.late import (
    FALSE_ALARM_PROBABILITY,
    WINDOW_STEPS,
    Search,
    Stretch,
    find_late,
    is_among,
)
from lockstep_reports.verdict.verdict import (
    MAX_CONFIDENCE,
    Episode,
    Verdict,
    rank_by_cost,
    saved_by_repair,
    unknown,
)
from lockstep_reports.wording import percent, plural

# A rank that takes so many times as long as the faster quarter is slow for good, whatever the
# spread of the others: healthy hardware of one kind does not differ by that much.
_MAX_LEVEL = 1.4
# Less is slow for good only where a gap sets it apart from the others: one of 15 %, or of 25 %
# where few stand below, and twice as wide as all the others differ. Fleets that differ for good
# with nobody to blame rarely have such a gap: with levels normal by 5 %, fewer than one in 1,000
# fleets of ten; by 10 % one in 300.
_MIN_GAP, _MIN_GAP_OF_FEW, _FEW_BELOW, _MIN_BELOW = 0.14, 0.22, 6, 3  # gaps are logarithms
_GAPS_OF_SPREAD = 2.0
_LEAST_SPREAD = 0.01  # to which a level is known, as a logarithm
_LOW_QUANTILE = 0.25


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Levels:
    """Usual times of ranks.

    Attributes:
        seconds: what a rank usually takes; of one that is slow for good, what the faster ranks
            usually take: seconds, [ranks, 1].
        ratio: a rank's own low level to that of the faster ranks [ranks, 1].
        is_slow: whether it is slow for good [ranks].
        common: what all ranks take longer in a step, as a ratio of 1 or more [1, steps].
        excess: the logarithm of a time over the usual one times ``common`` [ranks, steps].
    """

    seconds: Matrix
    ratio: Matrix
    is_slow: Flags
    common: Matrix
    excess: Matrix


def measure_levels(seconds: Matrix, window_steps: int) -> Levels | None:
    """Usual times from the low quartile of windowed medians; None where one is not positive.

    Args:
        seconds: own times, [ranks, steps]; NaN where unknown.
        window_steps: steps of a window.
    """
    usable = seconds.shape[1] // window_steps * window_steps
    windows = seconds[:, :usable].reshape(len(seconds), -1, window_steps)
    # Up to three windows in four may be slow.
    low = nan_stats.quantile(nan_stats.median(windows, axis=2), _LOW_QUANTILE, axis=1)[:, None]
    if not (nan_stats.number(np.nanmin(low)) or 0) > 0:
        return None
    is_slow = _slow_for_good(low[:, 0])
    faster = low[~is_slow]
    reference = nan_stats.quantile(low, _LOW_QUANTILE)
    usual = np.where(is_slow[:, None], nan_stats.median(faster), low)
    relative = seconds / usual
    common = np.maximum(nan_stats.quantile(relative, _LOW_QUANTILE, axis=0)[None, :], 1.0)
    with np.errstate(divide="ignore"):
        excess = np.log(relative / common)
    return Levels(
        seconds=usual, ratio=low / reference, is_slow=is_slow, common=common, excess=excess
    )


def _slow_for_good(low: Matrix) -> Flags:
    """Which ranks stand apart from the faster ones [ranks], by their low levels in seconds."""
    is_slow: Flags = low >= _MAX_LEVEL * nan_stats.quantile(low, _LOW_QUANTILE)
    levels = np.log(low)
    order = np.argsort(levels)
    ordered = levels[order]
    # At most half of the ranks are slow: else the others are the fast ones.
    for below in range(max(_MIN_BELOW, -(-len(low) // 2)), len(low)):
        gap = ordered[below] - ordered[below - 1]
        spread = max(_LEAST_SPREAD, ordered[below - 1] - ordered[0])
        least = _MIN_GAP if below >= _FEW_BELOW else _MIN_GAP_OF_FEW
        if gap >= max(least, _GAPS_OF_SPREAD * spread):
            is_slow = is_slow | np.isin(np.arange(len(low)), order[below:])
            break
    return is_slow if not is_slow.all() else np.zeros_like(is_slow)


# Windows twice those of synchronised steps: no collective levels the noise of own times.
_WINDOW_STEPS = 2 * WINDOW_STEPS
_MAX_EVIDENCE_EPISODES = 8
# Least excess of a slow rank over its own low level, as a ratio and in standard deviations of the
# noise from step to step.
_MIN_SLOWER_RATIO, _MIN_SIGMAS = 0.08, 2.5
_MIN_SAVED_SHARE = 0.005  # of a stretch's time, by repairing the rank
# Correlation of a step with the next one from which on slow drifts of healthy ranks are taken for
# episodes more often than once in a hundred runs.
_PERSISTENT = 0.85
# The search for steady stretches and that for recurrent ones share the probability, and so do the
# two for long stretches and for high ones.
_PROBABILITY = FALSE_ALARM_PROBABILITY / 2


def judge_own_times(
    steps: Steps, *, is_independent: bool = False
) -> tuple[Verdict, tuple[Episode, ...]]:
    """The verdict, and an episode for each rank and stretch of steps in which it was slow.

    Of ranks that nobody waits for, what repairs would save is not measured here.

    Null hypothesis: a rank takes its own usual time, times what all ranks take longer in that
    step, times noise. Long stretches are tested by signs (``find_late``), so the shape of the
    noise does not matter; short ones by height and count together (``find_high``).
    """
    num_steps, min_steps = len(steps.numbers), 2 * _WINDOW_STEPS
    if len(steps.members) <= 1:
        return unknown("One series of step times was read; who is slow needs those of ranks."), ()
    if num_steps < min_steps:
        return unknown(f"{plural(num_steps, 'step')} recorded; {min_steps} are needed."), ()
    levels = measure_levels(steps.seconds, _WINDOW_STEPS)
    if levels is None:
        return unknown("Some rank tells step times of zero; nothing can be compared."), ()
    threshold = max(_MIN_SLOWER_RATIO, _MIN_SIGMAS * _noise(levels.excess))
    stretches = _late_stretches(levels.excess, threshold)
    slow, saved = stretches, np.zeros_like(steps.seconds)
    if not is_independent:
        slow, saved = _who_costs(steps, levels, stretches)
    doubts = _doubts(levels.excess, stretches)
    if slow:
        episodes = [_episode(steps, levels, stretch, saved) for stretch in slow]
        return _slow_ranks(episodes, doubts)
    common_stretches = _late_stretches(np.log1p(levels.common - 1), threshold)
    if common_stretches:
        return _workload(steps, levels, common_stretches[0], doubts), ()
    return _nobody(steps, levels, threshold, doubts), ()


def _noise(excess: Matrix) -> float:
    """Standard deviation of ``excess`` [ranks, steps] from step to step, over all ranks.

    Differences of neighbouring steps leave episodes out; the median leaves their edges out. A
    difference of two independent values has sqrt(2) times the deviation of one.
    """
    change = np.abs(np.diff(excess, axis=1))
    median = nan_stats.median_number(change[change > 0]) or 0.0
    return median * SIGMAS_PER_MEDIAN / float(np.sqrt(2))


def _late_stretches(excess: Matrix, threshold: float) -> list[Stretch]:
    """Long stretches, short ones that are high, and ranks that are slow again and again.

    A long pause is not many, so those that come again are counted by their first step.
    """
    late = excess > threshold
    is_first = late & ~np.pad(late, ((0, 0), (1, 0)))[:, :-1]
    steady = Search(
        threshold=threshold,
        min_mean_loss=threshold / 4,
        gap=_WINDOW_STEPS,
        weight=independence(excess),
        false_alarm_probability=_PROBABILITY,
    )
    again = replace(steady, weight=1.0, always=False, changed=False, recurrent=True)
    # Hiccups of busy hosts last up to eight steps, and two may follow each other.
    found = [s for s in find_late(excess, steady) if s.num_late >= _WINDOW_STEPS]
    found += find_high(excess, threshold, _PROBABILITY)
    found += [
        s for s in find_late(np.where(late & ~is_first, 0.0, excess), again) if not s.is_steady
    ]
    stretches: list[Stretch] = []
    for stretch in found:
        if not is_among(stretches, stretch):
            stretches.append(stretch)
    return sorted(stretches, key=lambda stretch: (stretch.unit, stretch.first))


def _late_cells(excess: Matrix, stretch: Stretch) -> Flags:
    """The steps of a stretch in which its rank was late; of a steady one all [columns]."""
    inside = excess[stretch.unit, stretch.columns]
    late: Flags = np.ones(inside.shape, bool) if stretch.is_steady else inside > stretch.threshold
    return late


def _who_costs(
    steps: Steps, levels: Levels, stretches: Sequence[Stretch]
) -> tuple[list[Stretch], Matrix]:
    """The stretches whose repair would save time, and how much: seconds, [ranks, steps]."""
    remaining = list(stretches)
    usual = levels.seconds * levels.common
    while True:
        slow: Flags = np.zeros(steps.seconds.shape, bool)
        for stretch in remaining:
            slow[stretch.unit, stretch.columns] = _late_cells(levels.excess, stretch)
        # No longer than usual; what is shorter stays.
        repaired = np.where(slow, np.fmin(steps.seconds, usual), steps.seconds)
        saved = saved_by_repair(steps.seconds, repaired)
        longest = nan_stats.highest(repaired, axis=0)
        ratios = [
            float(saved[s.unit, s.columns].sum() / np.nansum(longest[s.columns])) for s in remaining
        ]
        if not ratios or min(ratios) >= _MIN_SAVED_SHARE:
            return remaining, np.where(slow, saved, 0.0)
        # One at a time: without it another one may be the slowest, and cost what it seemed to.
        del remaining[ratios.index(min(ratios))]


def _doubts(excess: Matrix, stretches: list[Stretch]) -> tuple[str, ...]:
    """A warning where the noise drags on for longer than the tests were calibrated for."""
    healthy = excess.copy()
    for stretch in stretches:
        healthy[stretch.unit, stretch.columns] = np.nan
    noise = measure_noise(healthy)
    if noise is None or noise.correlation < _PERSISTENT:
        return ()
    sentence = (
        f"Step times drift: each is like the one before it (correlation {noise.correlation:.2f}). "
        "From 0.85 on a drift of a healthy rank may look like an episode in more than one run of "
        "a hundred."
    )
    return (sentence,)


def _slow_ranks(
    episodes: list[Episode], doubts: tuple[str, ...]
) -> tuple[Verdict, tuple[Episode, ...]]:
    """The verdict and the episodes; what cost most comes first."""
    by_loss = sorted(episodes, key=rank_by_cost)
    lost = {
        rank: sum(e.lost_seconds for e in episodes if rank in e.ranks)
        for rank in dict.fromkeys(e.ranks[0] for e in by_loss)
    }
    lines = [line for episode in by_loss[:_MAX_EVIDENCE_EPISODES] for line in episode.evidence]
    verdict = Verdict(
        kind="rank",
        ranks=tuple(sorted(lost, key=lambda rank: -lost[rank])),
        confidence=by_loss[0].confidence,
        evidence=(*lines, *doubts),
    )
    return verdict, tuple(sorted(episodes, key=lambda e: (e.start_step, e.ranks)))


def _episode(steps: Steps, levels: Levels, stretch: Stretch, saved: Matrix) -> Episode:
    unit, columns = stretch.unit, stretch.columns
    late = _late_cells(levels.excess, stretch)
    inside = levels.excess[unit, columns][late]
    late_seconds = steps.seconds[unit, columns][late] * -np.expm1(-inside)
    seconds = np.where(np.isnan(steps.seconds[:, columns]), -np.inf, steps.seconds[:, columns])
    ongoing = stretch.last >= len(steps.numbers) - 2
    return Episode(
        start_step=int(steps.numbers[stretch.first]),
        end_step=int(steps.numbers[stretch.last]),
        columns=columns,
        ongoing=ongoing,
        ranks=(steps.ranks[unit],),
        group=None,
        phase=None,
        phase_seconds=None,
        late_seconds=float(nan_stats.median(late_seconds)),
        lost_by_step=saved[unit, columns],
        last_share=float(np.mean(np.argmax(seconds, axis=0) == unit)),
        confidence=min(MAX_CONFIDENCE, 1 - stretch.chance),
        evidence=(_why(steps, levels, stretch, ongoing=ongoing),),
    )


def _why(steps: Steps, levels: Levels, stretch: Stretch, *, ongoing: bool) -> str:
    """Why a stretch is an episode."""
    unit, columns = stretch.unit, stretch.columns
    late = _late_cells(levels.excess, stretch)
    ratio = float(np.exp(nan_stats.median(levels.excess[unit, columns][late])))
    start, end = (int(steps.numbers[column]) for column in (stretch.first, stretch.last))
    usual = "the faster ranks' time" if levels.is_slow[unit] else "its own usual time"
    if levels.is_slow[unit] and stretch.first <= 1 and ongoing:
        span = "from the first recorded step to the last"
    else:
        span = f"from step {start} to {end}{', the end of the recording' if ongoing else ''}"
    if not stretch.is_steady:
        span = f"now and then {span}"
    num_late = stretch.num_late if stretch.is_steady else int(late.sum())
    return (
        f"Rank {steps.ranks[unit]} took {ratio:.2f} times {usual} {span}; it was so in "
        f"{num_late:,} of {stretch.num_known:,} steps."
    )


def _workload(steps: Steps, levels: Levels, stretch: Stretch, doubts: tuple[str, ...]) -> Verdict:
    """Slow steps of all ranks."""
    ratio = float(nan_stats.median(levels.common[:, stretch.columns]))
    start, end = (int(steps.numbers[column]) for column in (stretch.first, stretch.last))
    return Verdict(
        kind="workload",
        confidence=min(MAX_CONFIDENCE, 1 - stretch.chance),
        evidence=(
            (
                f"From step {start} to {end} at least three ranks in four took {ratio:.2f} times "
                "their usual time at the same steps; no rank is to blame."
            ),
            *doubts,
        ),
    )


def _nobody(steps: Steps, levels: Levels, threshold: float, doubts: tuple[str, ...]) -> Verdict:
    ratios = levels.ratio / np.median(levels.ratio)
    return Verdict(
        kind="nobody",
        evidence=(
            (
                f"No rank got slower than its own usual time by {percent(np.expm1(threshold))} or "
                "more for so long that repairing it would have saved time."
            ),
            (
                f"Ranks differ for good, from {ratios.min():.2f} to {ratios.max():.2f} of the "
                "median, and none stands apart from the others."
            ),
            f"{len(steps.numbers):,} steps of {plural(len(steps.members), 'rank')} were judged.",
            *doubts,
        ),
    )
