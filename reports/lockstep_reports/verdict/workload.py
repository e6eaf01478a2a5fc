"""Slow workloads without a slow rank: uneven data, all ranks at once, or each in turn."""

from dataclasses import replace

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Matrix
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.candidates import Candidate
from lockstep_reports.search.late import Search, find_late
from lockstep_reports.search.score import Scores, beyond_usual, sample_rows
from lockstep_reports.search.stretches import FALSE_ALARM_PROBABILITY, Stretch, independence
from lockstep_reports.search.units import single_ranks
from lockstep_reports.verdict.verdict import MAX_CONFIDENCE, Verdict
from lockstep_reports.wording import list_ranks, percent

# Share of the longer work that longer sequences or more tokens must explain. A step costs
# a * tokens + b * sum(length^2) (ResiHP), so neither term explains all of it.
_MIN_EXPLAINED_SHARE = 0.5
# All ranks count as slow when at least three in four are.
_QUICK_SHARE = 0.25
# A rank with more than this share of the late steps is late itself; below it ranks take turns.
_MAX_SHARE_OF_ONE_RANK = 0.6
LOADS = "tokens", "sequence_lengths"
"""Causes that a recording of the amount of work proves."""
_MIN_LATE_STEPS = 8  # fewer say little about who takes turns
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


def workload(steps: Steps, scores: Scores, window_steps: int) -> Verdict | None:
    """The workload, when all ranks were slow at once or late in turn; None when neither.

    Null hypothesis of both searches: late steps lie anywhere with equal probability (Fisher's
    exact test in ``find_late``). The two searches share the false alarm probability.
    """
    beyond, threshold = beyond_usual(scores.own_work), scores.threshold
    search = Search(
        threshold=threshold,
        min_mean_loss=threshold / 2,
        gap=2 * window_steps,
        weight=independence(sample_rows(beyond)),
        false_alarm_probability=FALSE_ALARM_PROBABILITY / 2,
        always=False,
    )
    common = nan_stats.quantile(beyond, _QUICK_SHARE, axis=0)[None]
    for stretch in _stretches(common, search)[:1]:
        return _verdict(steps, stretch, *_why_common(steps, common, stretch))
    margin = single_ranks(steps).margin(beyond)
    latest = nan_stats.highest(margin, axis=0)[None]
    for stretch in _stretches(latest, search):
        late = margin[:, stretch.columns] > threshold
        share = late.sum(axis=1) / max(1, late.sum())
        if stretch.num_late >= _MIN_LATE_STEPS and share.max() <= _MAX_SHARE_OF_ONE_RANK:
            sentence = (
                f"In {stretch.num_late} of {stretch.num_known} steps some rank kept the others "
                f"waiting, but not the same one: {int((share > 0).sum())} ranks took turns, none "
                f"in more than {percent(float(share.max()))} of them."
            )
            return _verdict(steps, stretch, "rotating", sentence)
    return None


def _stretches(values: Matrix, search: Search) -> list[Stretch]:
    """Late stretches of one series [1, steps], in seconds; those with most late steps first."""
    weight = min(search.weight, independence(values))
    stretches = find_late(values, replace(search, weight=weight))
    return sorted(stretches, key=lambda stretch: -stretch.num_late)


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
