"""What slows a job with no rank to blame: uneven data, all ranks at once, or each in its turn."""

from dataclasses import replace

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Matrix
from lockstep_reports.recording.steps import Steps
from lockstep_reports.score import Scores
from lockstep_reports.search.episodes import Stretch, Thresholds, independence
from lockstep_reports.search.late import Search, find_late
from lockstep_reports.search.suspects import Suspect, beyond_usual
from lockstep_reports.search.units import single_ranks
from lockstep_reports.verdict.verdict import Verdict
from lockstep_reports.wording import percent

_MAX_CONFIDENCE = 0.999
_EXPLAINED = 0.5  # of the longer work that longer sequences or more tokens must explain
_FEWEST = 0.25  # of the ranks need not be slow for all to count as slow
_MOST_OF_ONE = 0.6  # of the late steps, for the culprits to change
_LEAST_LATE = 8


def explained_by_load(steps: Steps, suspect: Suspect) -> Verdict | None:
    """The workload, when the suspect had so much more to do than the others; else None."""
    places = suspect.stretch.places
    rows = list(suspect.rows)
    work = np.sum([steps.phases[name][:, places] for name in ("forward", "backward")], axis=0)
    longer = _ratio(work, rows) - 1
    for cause, load in (("tokens", steps.tokens), ("sequence_lengths", steps.sequence_squares)):
        if load is None or not longer > 0:
            continue
        more = _ratio(load[:, places], rows) - 1
        if more >= _EXPLAINED * longer:
            what = "tokens" if cause == "tokens" else "squared sequence lengths"
            named = ", ".join(str(steps.ranks[row]) for row in rows[:8])
            said = (
                f"Rank {named} took {percent(longer)} longer forward and backward, but had "
                f"{percent(more)} more {what} to work on: the data is uneven."
            )
            return _verdict(steps, suspect.stretch, cause, said)
    return None


def _ratio(values: Matrix, rows: list[int]) -> float:
    usual = nan_stats.median(np.delete(values, rows, axis=0), axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = nan_stats.median(values[rows], axis=0) / np.where(usual > 0, usual, np.nan)
    return float(nan_stats.median(ratio))


def workload(
    steps: Steps, scores: Scores, threshold: float, thresholds: Thresholds
) -> Verdict | None:
    """The workload, when all ranks were slow at once or late in turn; None when neither."""
    beyond = beyond_usual(scores.own_work)
    search = Search(
        threshold=threshold,
        mean=threshold / 2,
        gap=2 * thresholds.window_steps,
        weight=1.0,
        chance=thresholds.false_alarm_probability / 2,
        always=False,
    )
    search = replace(search, weight=independence(beyond[:: 1 + len(beyond) // 1024]))
    together = nan_stats.quantile(beyond, _FEWEST, axis=0)[None]
    for stretch in _found(together, search)[:1]:
        return _verdict(steps, stretch, *_why_together(steps, together, stretch))
    margin = single_ranks(steps).margin(beyond)
    latest = nan_stats.highest(margin, axis=0)[None]
    for stretch in _found(latest, search):
        inside = margin[:, stretch.places] > threshold
        share = inside.sum(axis=1) / max(1, inside.sum())
        if stretch.late >= _LEAST_LATE and share.max() <= _MOST_OF_ONE:
            said = (
                f"In {stretch.late} of {stretch.told} steps some rank kept the others waiting, but "
                f"not the same one: {int((share > 0).sum())} ranks took turns, none in more than "
                f"{percent(float(share.max()))} of them."
            )
            return _verdict(steps, stretch, "rotating", said)
    return None


def _found(values: Matrix, search: Search) -> list[Stretch]:
    weight = min(search.weight, independence(values))
    return sorted(
        find_late(values, replace(search, weight=weight)), key=lambda stretch: -stretch.late
    )


def _why_together(steps: Steps, together: Matrix, stretch: Stretch) -> tuple[str | None, str]:
    late = together[0, stretch.places] > stretch.threshold
    said = (
        f"At least three ranks in four worked longer than usual in the same {stretch.late} of "
        f"{stretch.told} steps; no rank is to blame."
    )
    places = np.arange(stretch.first, stretch.last + 1)[late]
    for cause, load in (("tokens", steps.tokens), ("sequence_lengths", steps.sequence_squares)):
        if load is None:
            continue
        usual = float(nan_stats.median(np.delete(load, places, axis=1)))
        if usual > 0 and float(nan_stats.median(load[:, places])) > (1 + _EXPLAINED / 10) * usual:
            return cause, f"{said} They had more to work on."
    return None, said


def _verdict(steps: Steps, stretch: Stretch, cause: str | None, said: str) -> Verdict:
    start, end = int(steps.numbers[stretch.first]), int(steps.numbers[stretch.last])
    return Verdict(
        kind="workload",
        cause=cause,
        confidence=min(_MAX_CONFIDENCE, 1 - stretch.chance),
        evidence=(f"From step {start} to {end}: {said[0].lower()}{said[1:]}",),
    )
