"""Compares two runs, or a window with its baseline: what changed, and with which confidence.

The durations of neighbouring steps are correlated, so the interval comes from a bootstrap over
blocks of steps. The effect size is Cliff's delta, which compares only which of two steps is longer.
"""

from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Matrix
from lockstep_reports.job_report import JobReport
from lockstep_reports.verdict.verdict import Verdict
from lockstep_reports.wording import duration, percent

# The bootstrap of a change. Null hypothesis: both runs have the same median duration. Assumption:
# durations may be correlated over a few steps, as in a pause that drags on, and not over more than
# a block of 10. 1,000 resamples put 25 medians beyond each end of the 95 % interval. 20 steps make
# four blocks of 5; from fewer blocks no interval is drawn.
_BLOCK_STEPS, _NUM_RESAMPLES, _MIN_STEPS = 10, 1000, 20
# Bounds memory and time for runs of any length: the latest steps are resampled.
_MAX_STEPS = 20_000
_MAX_BATCH_VALUES = 1 << 16
_TAIL_RATIO = 0.025
STEP = "step"


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A figure of the whole run before and after; None where unknown."""

    what: str
    before: float | None
    after: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What changed from one run to another.

    Attributes:
        against: name of the run before.
        changes: the step and its phases; phases that neither run spends time in are left out.
        figures: goodput, loss and cost.
    """

    against: str
    before: Verdict
    after: Verdict
    changes: tuple[Change, ...]
    figures: tuple[Figure, ...]

    @property
    def verdict_changed(self) -> bool:
        """Whether the culprits or their phase differ from before."""
        # Confidence and evidence differ between any two runs, so they do not count.
        old, new = self.before, self.after
        return (old.kind, old.ranks, old.group, old.phase) != (
            new.kind, new.ranks, new.group, new.phase,
        )  # fmt: skip


def compare(after: JobReport, before: JobReport, against: str) -> Comparison:
    """What changed from one report to the other."""
    old, new = before.step_durations(), after.step_durations()
    # In the order of a step, so that two comparisons read alike.
    names = [STEP, *(phase for phase in STEP_PHASES if phase in old or phase in new)]
    no_steps = np.zeros(0)
    old_figures, new_figures = before.key_figures(), after.key_figures()
    return Comparison(
        against=against,
        before=before.verdict,
        after=after.verdict,
        changes=tuple(
            measure_change(name, old.get(name, no_steps), new.get(name, no_steps)) for name in names
        ),
        figures=tuple(
            Figure(what=name, before=old_figures.get(name), after=new_figures.get(name))
            # Reports of two kinds have different figures: the union, in order.
            for name in dict.fromkeys([*old_figures, *new_figures])
        ),
    )


def measure_change(what: str, before: Matrix, after: Matrix, seed: int = 0) -> Change:
    """How a duration changed.

    Args:
        what: ``step`` or a phase.
        before: seconds [steps]; NaN is left out.
        after: the same, of the later run.
        seed: of the bootstrap; fixed, so that equal recordings give equal reports.
    """
    # A step that some rank did not record has no duration.
    old, new = before[~np.isnan(before)], after[~np.isnan(after)]
    old_median = nan_stats.number(nan_stats.median(old))
    new_median = nan_stats.number(nan_stats.median(new))
    difference = ratio = low = high = effect = None
    if old_median is not None and new_median is not None:
        difference, ratio = new_median - old_median, new_median / old_median if old_median else None
    if min(len(old), len(new)) >= _MIN_STEPS:
        generator = np.random.default_rng(seed)
        differences = _resampled_medians(new, generator) - _resampled_medians(old, generator)
        quantiles = (_TAIL_RATIO, 1 - _TAIL_RATIO)
        low, high = (float(np.quantile(differences, quantile)) for quantile in quantiles)
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

    Args:
        before: seconds [steps].
        after: seconds [other steps].

    Returns:
        -1 to 1; 0 when both are alike. Cliff (1993), by sorting in O(n log n) instead of all pairs.
    """
    ordered = np.sort(before)
    below = np.searchsorted(ordered, after, side="left")
    above = len(ordered) - np.searchsorted(ordered, after, side="right")
    return float((below - above).sum() / (len(before) * len(after)))


def _resampled_medians(values: Matrix, generator: np.random.Generator) -> Matrix:
    """Medians of samples drawn in blocks of neighbours [resamples], in seconds.

    Args:
        values: seconds [steps], without NaN.
        generator: source of the blocks.
    """
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


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain values."""
    return {
        "against": comparison.against,
        "verdict_changed": comparison.verdict_changed,
        "verdict_before": asdict(comparison.before),
        "changes": [asdict(change) for change in comparison.changes],
        "figures": {
            figure.what: {"before": figure.before, "after": figure.after}
            for figure in comparison.figures
        },
    }


def comparison_sentence(comparison: Comparison) -> str:
    """How much longer or shorter a step has become, and whether the interval excludes no change."""
    step = comparison.changes[0]
    if step.difference_seconds is None or step.ratio is None:
        return "How long a step took cannot be compared."
    direction = "longer" if step.difference_seconds > 0 else "shorter"
    sentence = (
        f"A step took {duration(step.after_seconds)}, {percent(abs(step.ratio - 1))} {direction}"
        f" than in {comparison.against} ({duration(step.before_seconds)})"
    )
    if step.low_seconds is None or step.high_seconds is None:
        return f"{sentence}; too few steps to say how surely."
    low, high = signed(step.low_seconds), signed(step.high_seconds)
    doubt = "" if step.is_sure else ", which leaves room for no change"
    return f"{sentence}; 95 % interval of the difference {low} to {high}{doubt}."


def signed(seconds: float | None) -> str:
    """A difference with its sign and its unit."""
    if seconds is None:
        return "unknown"
    return ("+" if seconds > 0 else "") + duration(seconds)
