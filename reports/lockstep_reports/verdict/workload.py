"""Slow workloads without a slow rank: uneven data, or all ranks at once."""

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.candidates import Candidate, common_work
from lockstep_reports.search.queued import is_crowded
from lockstep_reports.search.score import Scores, beyond_usual
from lockstep_reports.search.stretches import Stretch
from lockstep_reports.verdict.verdict import MAX_CONFIDENCE, Verdict
from lockstep_reports.wording import list_ranks, percent

# Share of the longer work that longer sequences or more tokens must explain. A step costs
# a * tokens + b * sum(length^2) (ResiHP), so neither term explains all of it.
_MIN_EXPLAINED_SHARE = 0.5
LOADS = "tokens", "sequence_lengths"
"""Causes that a recording of the amount of work proves."""
# How much more work than usual all ranks must have in slow steps to explain these by it.
_MIN_MORE_WORK = 1.05


def explained_by_load(steps: Steps, candidate: Candidate) -> Verdict | None:
    """The workload, when the candidate had so much more to do than the others; else None."""
    columns = candidate.stretch.columns
    rows = list(candidate.rows)
    work = np.sum([steps.phases[name][:, columns] for name in ("forward", "backward")], axis=0)
    longer = _ratio(work, rows) - 1
    for cause, load in _loads(steps).items():
        if not longer > 0:
            continue
        more = _ratio(load[:, columns], rows) - 1
        if more >= _MIN_EXPLAINED_SHARE * longer:
            unit = "tokens" if cause == "tokens" else "squared sequence lengths"
            ranks = list_ranks([steps.ranks[row] for row in rows])
            sentence = (
                f"Rank {ranks} took {percent(longer)} longer forward and backward, but had "
                f"{percent(more)} more {unit} to work on: the data is uneven."
            )
            return _verdict(steps, candidate.stretch, cause, sentence)
    return None


def _loads(steps: Steps) -> dict[str, Matrix]:
    """What the recording knows of the amount of work [ranks, steps], by cause."""
    loads = zip(LOADS, (steps.tokens, steps.sequence_squares), strict=True)
    return {cause: load for cause, load in loads if load is not None}


def _ratio(values: Matrix, rows: list[int]) -> float:
    """Median over the steps of some rows' median to the others' median, from [ranks, steps]."""
    usual = nan_stats.median(np.delete(values, rows, axis=0), axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = nan_stats.median(values[rows], axis=0) / np.where(usual > 0, usual, np.nan)
    return float(nan_stats.median(ratio))


def slow_workload(steps: Steps, scores: Scores, stretch: Stretch) -> Verdict | None:
    """The workload that was slow in a stretch; None where a busy host explains it.

    It does where waits for a core are half of it. On a crowded host caches are shared too: there
    uneven data explains it, or what ranks sleep, and no longer time on a core.
    """
    beyond = beyond_usual(scores.own_work)
    common = common_work(beyond)
    cause, sentence = _why_common(steps, common, stretch)
    late = stretch.first + np.flatnonzero(common[0, stretch.columns] > stretch.threshold)
    worked = float(np.nanmean(beyond[:, late]))
    if not is_crowded(steps):
        return _verdict(steps, stretch, cause, sentence)
    if _beyond(steps.run_queue, late) >= _MIN_EXPLAINED_SHARE * worked:
        return None
    is_hosts = cause is None and steps.blocked is not None
    if is_hosts and not _beyond(steps.blocked, late) >= _MIN_EXPLAINED_SHARE * worked:
        return None
    return _verdict(steps, stretch, cause, sentence)


def _beyond(seconds: Matrix | None, late: Integers) -> float:
    """What ranks have beyond their usual in late columns: mean seconds, of [ranks, steps]."""
    if seconds is None:
        return 0.0
    return float(np.mean(beyond_usual(np.nan_to_num(seconds))[:, late]))


def _why_common(steps: Steps, common: Matrix, stretch: Stretch) -> tuple[str | None, str]:
    """Cause and sentence for steps in which all ranks worked longer [1, steps]."""
    late = common[0, stretch.columns] > stretch.threshold
    sentence = (
        f"At least three ranks in four worked longer than usual in the same {stretch.num_late} of "
        f"{stretch.num_known} steps; no rank is to blame."
    )
    columns = np.arange(stretch.first, stretch.last + 1)[late]
    for cause, load in _loads(steps).items():
        usual = float(nan_stats.median(np.delete(load, columns, axis=1)))
        if usual > 0 and float(nan_stats.median(load[:, columns])) > _MIN_MORE_WORK * usual:
            return cause, f"{sentence} They had more to work on."
    return None, sentence


def _verdict(steps: Steps, stretch: Stretch, cause: str | None, sentence: str) -> Verdict:
    start, end = int(steps.numbers[stretch.first]), int(steps.numbers[stretch.last])
    return Verdict(
        kind="workload",
        cause=cause,
        confidence=min(MAX_CONFIDENCE, 1 - stretch.chance),
        evidence=(f"From step {start} to {end}: {sentence[0].lower()}{sentence[1:]}",),
    )
