"""Judges ranks whose step times are their own: each against its own past, not against the median.

Workers may differ for good with nobody to blame, and half of them may turn slow at once. So each
is measured by its own low level, and what slows all at the same steps is the workload's.
"""

import math
from dataclasses import dataclass

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Matrix
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.episodes import Stretch, Thresholds, find_stretches
from lockstep_reports.verdict.verdict import Episode, Verdict
from lockstep_reports.wording import percent, plural

_MAX_CONFIDENCE = 0.999
_SLOWLY = Thresholds(window_steps=20, min_steps=40, min_episode_steps=20)


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnLimits:
    """When a rank is slow.

    Attributes:
        slower: than its own low level, at least.
        sigmas: of the noise that it must be above, at least.
        level: how much slower than the faster quarter a rank must always be to be named for that.
        quantile: which share of the ranks, or of a rank's windows, counts as the low level.
    """

    slower: float = 0.08
    sigmas: float = 2.5
    level: float = 1.4
    quantile: float = 0.25


def judge_own_times(
    steps: Steps, limits: OwnLimits | None = None, thresholds: Thresholds | None = None
) -> tuple[Verdict, tuple[Episode, ...]]:
    """The verdict, and an episode for each rank and stretch of steps in which it was slow."""
    limits, thresholds = limits or OwnLimits(), thresholds or _SLOWLY
    count = len(steps.numbers)
    if len(steps.members) <= 1:
        return _unknown("One series of step times was read; who is slow needs those of ranks."), ()
    if count < thresholds.min_steps:
        return _unknown(f"{plural(count, 'step')} recorded; {thresholds.min_steps} are needed."), ()
    window = thresholds.window_steps
    low = nan_stats.quantile(_smooth(steps.seconds, window), limits.quantile, axis=1)[:, None]
    if not (nan_stats.number(np.nanmin(low)) or 0) > 0:
        return _unknown("Some rank tells step times of zero; nothing can be compared."), ()
    level = low / nan_stats.quantile(low, limits.quantile)
    relative = steps.seconds / np.where(level >= limits.level, low / level, low)
    common = nan_stats.quantile(relative, limits.quantile, axis=0)[None, :]
    slower = relative / np.maximum(common, 1.0) - 1
    noise = _noise(slower)
    threshold = max(limits.slower, limits.sigmas * noise)
    found = find_stretches(slower, threshold, thresholds)
    if found:
        return _accused(steps, slower, steps.seconds / (1 + slower), found)
    together = find_stretches(common - 1, threshold, thresholds)
    if together:
        return _workload(steps, common, together[0]), ()
    return _nobody(steps, level, threshold, limits), ()


def _unknown(why: str) -> Verdict:
    return Verdict(kind="unknown", evidence=(why,))


def _smooth(values: Matrix, window: int) -> Matrix:
    """Medians of windows that stand beside each other [ranks x windows]."""
    usable = values.shape[1] // window * window
    return nan_stats.median(values[:, :usable].reshape(len(values), -1, window), axis=2)


def _noise(slower: Matrix) -> float:
    """Robust standard deviation from one step to the next, over all ranks: no episode moves it."""
    change = np.abs(np.diff(slower, axis=1))
    middle = nan_stats.number(nan_stats.median(change[change > 0])) or 0.0
    return middle * 1.4826 / math.sqrt(2)


def _accused(
    steps: Steps, slower: Matrix, usual: Matrix, found: list[Stretch]
) -> tuple[Verdict, tuple[Episode, ...]]:
    beyond = np.zeros_like(slower)
    for stretch in found:
        rows = stretch.unit, stretch.places
        beyond[rows] = np.nan_to_num(np.maximum(slower[rows] * usual[rows], 0.0))
    worst = np.argmax(beyond, axis=0)
    # The job waits for the slowest of them alone.
    lost = np.where(np.arange(len(beyond))[:, None] == worst, beyond, 0.0)
    late = slower * usual
    episodes = [_episode(steps, slower, late=late, lost=lost, stretch=stretch) for stretch in found]
    by_loss = sorted(episodes, key=lambda e: -e.late_seconds * (e.columns.stop - e.columns.start))
    verdict = Verdict(
        kind="rank",
        ranks=tuple(dict.fromkeys(rank for episode in by_loss for rank in episode.ranks)),
        confidence=by_loss[0].confidence,
        evidence=tuple(line for episode in by_loss[:8] for line in episode.evidence),
    )
    return verdict, tuple(sorted(episodes, key=lambda e: (e.start_step, e.ranks)))


def _episode(
    steps: Steps, slower: Matrix, *, late: Matrix, lost: Matrix, stretch: Stretch
) -> Episode:
    unit, columns = stretch.unit, stretch.places
    rank, ratio = steps.ranks[unit], 1 + float(nan_stats.median(slower[unit, columns]))
    told = np.where(np.isnan(steps.seconds[:, columns]), -np.inf, steps.seconds[:, columns])
    last = np.argmax(told, axis=0)
    ongoing = stretch.last >= len(steps.numbers) - 2
    start, end = int(steps.numbers[stretch.first]), int(steps.numbers[stretch.last])
    evidence = (
        f"Rank {rank} took {ratio:.2f} times its own usual time from step {start} to {end}"
        f"{', the end of the recording' if ongoing else ''}; it was so in {stretch.late} of "
        f"{stretch.told} steps."
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
        confidence=min(_MAX_CONFIDENCE, 1 - stretch.chance),
        evidence=(evidence,),
    )


def _workload(steps: Steps, common: Matrix, stretch: Stretch) -> Verdict:
    ratio = float(nan_stats.median(common[:, stretch.places]))
    start, end = (int(steps.numbers[at]) for at in (stretch.first, stretch.last))
    return Verdict(
        kind="workload",
        confidence=min(_MAX_CONFIDENCE, 1 - stretch.chance),
        evidence=(
            (
                f"From step {start} to {end} at least three ranks in four took {ratio:.2f} times "
                "their usual time at the same steps; no rank is to blame."
            ),
        ),
    )


def _nobody(steps: Steps, level: Matrix, threshold: float, limits: OwnLimits) -> Verdict:
    middle = level / np.median(level)
    return Verdict(
        kind="nobody",
        evidence=(
            f"No rank got slower than its own usual time by {percent(threshold)} or more for long.",
            (
                f"Ranks differ for good, from {middle.min():.2f} to {middle.max():.2f} of the "
                f"median; from {limits.level:.2f} of the faster quarter on it would count."
            ),
            f"{len(steps.numbers):,} steps of {plural(len(steps.members), 'rank')} were judged.",
        ),
    )
