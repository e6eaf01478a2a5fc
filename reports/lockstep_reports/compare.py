"""Two runs beside each other, or a window beside its baseline: what changed, and how surely.

Steps follow each other, so the interval comes from a bootstrap over blocks of steps; the effect
size is Cliff's delta, which asks only which of two steps took longer.
"""

from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Matrix
from lockstep_reports.incident import LogReport
from lockstep_reports.report import Report
from lockstep_reports.verdict.verdict import Verdict
from lockstep_reports.wording import duration, percent

_BLOCK_STEPS, _RESAMPLES, _LEAST_STEPS = 10, 1000, 20
_MOST_STEPS = 20_000
_TAIL = 0.025
STEP = "step"


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One duration before and after: medians over the steps, in seconds; None where unknown.

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
        """Whether the interval leaves out no change."""
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
    """A run and what it is held against.

    Attributes:
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
        """Whether the culprits or their phase are others than before."""
        old, new = self.before, self.after
        return (old.kind, old.ranks, old.group, old.phase) != (
            new.kind, new.ranks, new.group, new.phase,
        )  # fmt: skip


def compare(after: Report | LogReport, before: Report | LogReport, against: str) -> Comparison:
    """What changed from one report to the other."""
    old, new = _durations(before), _durations(after)
    names = [STEP, *(phase for phase in STEP_PHASES if phase in old or phase in new)]
    unknown = np.zeros(0)
    was, is_now = _figures(before), _figures(after)
    return Comparison(
        against=against,
        before=_verdict(before),
        after=_verdict(after),
        changes=tuple(change(n, old.get(n, unknown), new.get(n, unknown)) for n in names),
        figures=tuple(
            Figure(what=what, before=was.get(what), after=is_now.get(what))
            for what in dict.fromkeys([*was, *is_now])
        ),
    )


def _durations(report: Report | LogReport) -> dict[str, Matrix]:
    """Seconds a step [steps] by what took them; phases without any left out."""
    if isinstance(report, LogReport):
        return {STEP: np.array(report.log.step_seconds, dtype=np.float64)}
    phases = report.steps.phases.items()
    told = {phase: nan_stats.median(seconds, axis=0) for phase, seconds in phases}
    spent = {phase: seconds for phase, seconds in told.items() if np.nansum(seconds) > 0}
    return {STEP: report.scores.step_seconds, **spent}


def _verdict(report: Report | LogReport) -> Verdict:
    if isinstance(report, Report):
        return report.verdict
    incident = report.incident
    return Verdict(
        kind=incident.blame, ranks=incident.ranks, group=incident.group, cause=incident.cause
    )


def change(what: str, before: Matrix, after: Matrix, seed: int = 0) -> Change:
    """How durations [steps] changed; NaN is left out."""
    old, new = before[~np.isnan(before)], after[~np.isnan(after)]
    first, last = nan_stats.number(nan_stats.median(old)), nan_stats.number(nan_stats.median(new))
    difference = None if first is None or last is None else last - first
    low = high = effect = None
    if min(len(old), len(new)) >= _LEAST_STEPS:
        draw = np.random.default_rng(seed)
        spread = _medians(new, draw) - _medians(old, draw)
        low, high = (float(np.quantile(spread, share)) for share in (_TAIL, 1 - _TAIL))
        effect = cliffs_delta(old, new)
    return Change(
        what=what,
        before_seconds=first,
        after_seconds=last,
        difference_seconds=difference,
        ratio=last / first if first and last is not None else None,
        low_seconds=low,
        high_seconds=high,
        effect=effect,
    )


def cliffs_delta(before: Matrix, after: Matrix) -> float:
    """Share of pairs in which the later one is longer, minus that in which it is shorter."""
    ordered = np.sort(before)
    below = np.searchsorted(ordered, after, side="left")
    above = len(ordered) - np.searchsorted(ordered, after, side="right")
    return float((below - above).sum() / (len(before) * len(after)))


def _medians(values: Matrix, draw: "np.random.Generator") -> Matrix:
    """Medians of samples drawn in blocks of neighbours [resamples]."""
    values = values[-_MOST_STEPS:]
    size = min(_BLOCK_STEPS, max(1, len(values) // 4))
    count = -(-len(values) // size)
    found = np.empty(_RESAMPLES)
    within = np.arange(size)
    for at in range(_RESAMPLES):
        begin = draw.integers(0, len(values) - size + 1, count)
        found[at] = np.median(values[cast("NDArray[np.int64]", begin[:, None] + within)])
    return found


def _figures(report: Report | LogReport) -> dict[str, float | None]:
    if isinstance(report, LogReport):
        return {"seconds_after_last_progress": report.incident.seconds_after_last_progress}
    cost, count = report.cost, report.summary.count
    return {
        "goodput_ratio": report.goodput.ratio,
        "lost_ratio": cost.lost_ratio,
        "lost_gpu_seconds_per_step": cost.lost_gpu_seconds / count if count else None,
        "lost_money_per_step": cost.lost_money / count
        if cost.lost_money is not None and count
        else None,
    }


def comparison_json(told: Comparison) -> dict[str, Any]:
    """The comparison as plain values."""
    return {
        "against": told.against,
        "verdict_changed": told.verdict_changed,
        "verdict_before": asdict(told.before),
        "changes": [asdict(line) for line in told.changes],
        "figures": {
            figure.what: {"before": figure.before, "after": figure.after} for figure in told.figures
        },
    }


def compared_in_words(told: Comparison) -> str:
    """One sentence: how much longer or shorter a step has become, and whether that is sure."""
    step = told.changes[0]
    if step.difference_seconds is None or step.ratio is None:
        return "How long a step took cannot be compared."
    way = "longer" if step.difference_seconds > 0 else "shorter"
    said = (
        f"A step took {duration(step.after_seconds)}, {percent(abs(step.ratio - 1))} {way} than in"
        f" {told.against} ({duration(step.before_seconds)})"
    )
    if step.low_seconds is None or step.high_seconds is None:
        return f"{said}; too few steps to say how surely."
    low, high = signed(step.low_seconds), signed(step.high_seconds)
    sure = "" if step.is_sure else ", which leaves room for no change"
    return f"{said}; 95 % interval of the difference {low} to {high}{sure}."


def signed(seconds: float | None) -> str:
    """A difference with its sign."""
    if seconds is None:
        return "unknown"
    return ("+" if seconds > 0 else "") + duration(seconds)
