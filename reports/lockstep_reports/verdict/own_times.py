"""Judges ranks whose step times are their own: each against its own past, not against the median.

Workers may differ for good with nobody to blame, and half of them may turn slow at once. So each
is compared with its own low level, and what slows all in the same steps is the workload's.
"""

import math
from dataclasses import dataclass

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Matrix
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.stretches import Stretch, Thresholds, find_stretches
from lockstep_reports.verdict.verdict import MAX_CONFIDENCE, Episode, Verdict
from lockstep_reports.wording import percent, plural

# Windows twice those of synchronised steps: no collective levels the noise of own times.
_LONG_THRESHOLDS = Thresholds(window_steps=20, min_steps=40, min_episode_steps=20)
_MAX_EVIDENCE_EPISODES = 8
# Median of the absolute value of a normal variable, inverted: turns a median deviation into a
# standard deviation.
_NORMAL_SIGMAS_PER_MEDIAN = 1.4826


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnLimits:
    """When a rank is slow.

    Attributes:
        slower: least excess over its own low level, as a ratio.
        sigmas: least excess in standard deviations of the noise from step to step.
        level: how many times the faster quarter's low level a rank must always take to be named
            for that.
        quantile: share of the ranks, or of a rank's windows, that counts as the low level.
    """

    slower: float = 0.08
    sigmas: float = 2.5
    level: float = 1.4
    quantile: float = 0.25


def judge_own_times(
    steps: Steps, limits: OwnLimits | None = None, thresholds: Thresholds | None = None
) -> tuple[Verdict, tuple[Episode, ...]]:
    """The verdict, and an episode for each rank and stretch of steps in which it was slow.

    Null hypothesis: a rank takes its own usual time, times what all ranks take longer in that
    step, times noise. Stretches over the threshold are tested by signs (``find_stretches``), so
    the shape of the noise does not matter; its size sets the threshold.
    """
    limits, thresholds = limits or OwnLimits(), thresholds or _LONG_THRESHOLDS
    num_steps = len(steps.numbers)
    if len(steps.members) <= 1:
        return _unknown("One series of step times was read; who is slow needs those of ranks."), ()
    if num_steps < thresholds.min_steps:
        needed = f"{thresholds.min_steps} are needed"
        return _unknown(f"{plural(num_steps, 'step')} recorded; {needed}."), ()
    smooth = _smooth(steps.seconds, thresholds.window_steps)
    low = nan_stats.quantile(smooth, limits.quantile, axis=1)[:, None]
    if not (nan_stats.number(np.nanmin(low)) or 0) > 0:
        return _unknown("Some rank tells step times of zero; nothing can be compared."), ()
    level = low / nan_stats.quantile(low, limits.quantile)
    # A rank that is slow for good is compared with the others' level, any other one with its own.
    relative = steps.seconds / np.where(level >= limits.level, low / level, low)
    common = nan_stats.quantile(relative, limits.quantile, axis=0)[None, :]
    slower = relative / np.maximum(common, 1.0) - 1
    threshold = max(limits.slower, limits.sigmas * _noise(slower))
    stretches = find_stretches(slower, threshold, thresholds)
    if stretches:
        return _slow_ranks(steps, slower, steps.seconds / (1 + slower), stretches)
    common_stretches = find_stretches(common - 1, threshold, thresholds)
    if common_stretches:
        return _workload(steps, common, common_stretches[0]), ()
    return _nobody(steps, level, threshold, limits), ()


def _unknown(why: str) -> Verdict:
    return Verdict(kind="unknown", evidence=(why,))


def _smooth(values: Matrix, window: int) -> Matrix:
    """Medians of successive windows: [ranks, steps] to [ranks, windows]."""
    usable = values.shape[1] // window * window
    return nan_stats.median(values[:, :usable].reshape(len(values), -1, window), axis=2)


def _noise(slower: Matrix) -> float:
    """Standard deviation of ``slower`` [ranks, steps] from step to step, over all ranks.

    Differences of neighbouring steps leave episodes out; the median leaves their edges out. A
    difference of two independent values has sqrt(2) times the deviation of one.
    """
    change = np.abs(np.diff(slower, axis=1))
    median = nan_stats.number(nan_stats.median(change[change > 0])) or 0.0
    return median * _NORMAL_SIGMAS_PER_MEDIAN / math.sqrt(2)


def _slow_ranks(
    steps: Steps, slower: Matrix, usual: Matrix, stretches: list[Stretch]
) -> tuple[Verdict, tuple[Episode, ...]]:
    """The verdict and episodes of some stretches.

    Args:
        steps: the recording.
        slower: excess over the usual time, as a ratio [ranks, steps].
        usual: usual time: seconds, [ranks, steps].
        stretches: of ranks that were slow.
    """
    late = slower * usual
    beyond = np.zeros_like(slower)
    for stretch in stretches:
        cells = stretch.unit, stretch.columns
        beyond[cells] = np.nan_to_num(np.maximum(late[cells], 0.0))
    worst = np.argmax(beyond, axis=0)
    # The job waits for the slowest of them only.
    lost = np.where(np.arange(len(beyond))[:, None] == worst, beyond, 0.0)
    episodes = [
        _episode(steps, slower, late=late, lost=lost, stretch=stretch) for stretch in stretches
    ]
    by_loss = sorted(episodes, key=lambda e: -e.late_seconds * (e.columns.stop - e.columns.start))
    verdict = Verdict(
        kind="rank",
        ranks=tuple(dict.fromkeys(rank for episode in by_loss for rank in episode.ranks)),
        confidence=by_loss[0].confidence,
        evidence=tuple(
            line for episode in by_loss[:_MAX_EVIDENCE_EPISODES] for line in episode.evidence
        ),
    )
    return verdict, tuple(sorted(episodes, key=lambda e: (e.start_step, e.ranks)))


def _episode(
    steps: Steps, slower: Matrix, *, late: Matrix, lost: Matrix, stretch: Stretch
) -> Episode:
    """One rank's episode; ``slower`` is a ratio, ``late``, ``lost`` seconds, all [ranks, steps]."""
    unit, columns = stretch.unit, stretch.columns
    rank, ratio = steps.ranks[unit], 1 + float(nan_stats.median(slower[unit, columns]))
    seconds = steps.seconds[:, columns]
    last = np.argmax(np.where(np.isnan(seconds), -np.inf, seconds), axis=0)
    ongoing = stretch.last >= len(steps.numbers) - 2
    start, end = int(steps.numbers[stretch.first]), int(steps.numbers[stretch.last])
    evidence = (
        f"Rank {rank} took {ratio:.2f} times its own usual time from step {start} to {end}"
        f"{', the end of the recording' if ongoing else ''}; it was so in {stretch.num_late} of "
        f"{stretch.num_known} steps."
    )
    return Episode(
        start_step=start,
        end_step=end,
        columns=columns,
        ongoing=ongoing,
        ranks=(rank,),
        group=None,
        phase=None,
        phase_seconds=None,
        late_seconds=float(nan_stats.median(late[unit, columns])),
        lost_by_step=lost[unit, columns],
        last_share=float(np.mean(last == unit)),
        confidence=min(MAX_CONFIDENCE, 1 - stretch.chance),
        evidence=(evidence,),
    )


def _workload(steps: Steps, common: Matrix, stretch: Stretch) -> Verdict:
    """Slow steps of all ranks; ``common`` is a ratio to the usual time [1, steps]."""
    ratio = float(nan_stats.median(common[:, stretch.columns]))
    start, end = (int(steps.numbers[column]) for column in (stretch.first, stretch.last))
    return Verdict(
        kind="workload",
        confidence=min(MAX_CONFIDENCE, 1 - stretch.chance),
        evidence=(
            (
                f"From step {start} to {end} at least three ranks in four took {ratio:.2f} times "
                "their usual time at the same steps; no rank is to blame."
            ),
        ),
    )


def _nobody(steps: Steps, level: Matrix, threshold: float, limits: OwnLimits) -> Verdict:
    """Nobody; ``level`` is each rank's low level, as a ratio to the faster quarter's [ranks, 1]."""
    ratios = level / np.median(level)
    return Verdict(
        kind="nobody",
        evidence=(
            f"No rank got slower than its own usual time by {percent(threshold)} or more for long.",
            (
                f"Ranks differ for good, from {ratios.min():.2f} to {ratios.max():.2f} of the "
                f"median; from {limits.level:.2f} of the faster quarter on it would count."
            ),
            f"{len(steps.numbers):,} steps of {plural(len(steps.members), 'rank')} were judged.",
        ),
    )
