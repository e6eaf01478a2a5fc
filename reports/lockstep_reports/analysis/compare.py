"""The change of a duration from one run to another, and its confidence.

The durations of neighbouring steps are correlated, so the interval comes from a bootstrap over
blocks of steps. The effect size is Cliff's delta, which compares only which of two steps is longer.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Matrix

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
