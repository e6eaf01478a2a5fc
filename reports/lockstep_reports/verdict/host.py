"""Episodes of the host: a rank that waited for its core is not slow, one that was stopped is."""

from collections.abc import Iterator

import numpy as np

from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import MIN_EFFECT_RATIO, Scores
from lockstep_reports.verdict.losses import HELD_CAUSES, Charges
from lockstep_reports.verdict.verdict import MAX_CONFIDENCE, Episode
from lockstep_reports.wording import duration, plural

# Of the stop by which half of the time is reached: far shorter ones are of something else.
_LEAST_RATIO = 0.25
# A gap of so many median ones is one of 1,000 where stops come at a steady rate.
_GAPS_OF_MEDIAN = 10.0
_MAX_SHARE_OF_RANKS = 0.5  # more than these are held in turns
_DOINGS = {
    "stopped": (
        "The process of rank {} stood still in {}, for {} in all, from step {} to {}: none of its "
        "threads had a core, and none waited for one."
    ),
    "collector": "Rank {} paused to collect garbage in {}, for {} in all, from step {} to {}.",
}


def held_episodes(
    steps: Steps, scores: Scores, charges: Charges, window_steps: int
) -> Iterator[Episode]:
    """Those of a few ranks that were stopped or collected garbage, again and again or for long.

    Pages say for how long, so chance has no part in it. From ``window_steps`` pauses on none is
    brief, and a brief one that cost little is left out. Where more than half of the ranks are held,
    they are in turns.
    """
    cheap_seconds = MIN_EFFECT_RATIO * float(np.nansum(scores.step_seconds))
    for cause in HELD_CAUSES:
        if cause not in charges.names:
            continue
        part = charges.select(charges.causes == charges.names.index(cause))
        by_rank = np.bincount(part.rows, weights=part.costs, minlength=len(steps.members))
        dear = np.flatnonzero((by_rank > 0) & (by_rank >= _LEAST_RATIO * by_rank.max(initial=0)))
        if len(dear) > _MAX_SHARE_OF_RANKS * len(steps.members):
            continue
        for row in dear.tolist():
            mine = part.select(part.rows == row)
            cost: Matrix = np.zeros(len(steps.numbers))
            np.add.at(cost, mine.columns, mine.costs)
            held = np.nan_to_num(scores.account.host[cause][row])
            for columns in _split(steps, row, _alike(held)):
                inside = cost[columns[0] : columns[-1] + 1]
                is_brief = len(columns) < window_steps and inside.sum() < cheap_seconds
                if not is_brief and inside.sum() >= scores.threshold / 2 * len(inside):
                    yield _episode(steps, (row, cause), columns, held[columns], inside)


def _alike(held: Matrix) -> Integers:
    """Steps of the pauses [steps] that are not far shorter than those that make up the time."""
    lengths = np.sort(held)
    half = lengths[np.searchsorted(lengths.cumsum(), lengths.sum() / 2)]
    return np.flatnonzero((held > 0) & (held >= _LEAST_RATIO * half))


def _split(steps: Steps, row: int, columns: Integers) -> Iterator[Integers]:
    """The pauses of a rank in parts without a long gap."""
    times = np.nan_to_num(steps.seconds[row]).cumsum()[columns]
    gaps = np.diff(times)
    longest = _GAPS_OF_MEDIAN * float(np.median(gaps)) if len(gaps) else 0.0
    yield from np.split(columns, 1 + np.flatnonzero(gaps > longest))


def _episode(
    steps: Steps, whose: tuple[int, str], columns: Integers, held: Matrix, cost: Matrix
) -> Episode:
    (row, cause), first, last = whose, int(columns[0]), int(columns[-1])
    rank, median = steps.ranks[row], float(np.median(held))
    start, end = int(steps.numbers[first]), int(steps.numbers[last])
    count = plural(len(held), "step")
    why = (
        _DOINGS[cause].format(rank, count, duration(float(held.sum())), start, end),
        f"In each it was {duration(median)} (median); the job lost {duration(float(cost.sum()))}.",
    )
    return Episode(
        start_step=start,
        end_step=end,
        columns=slice(first, last + 1),
        ongoing=last >= len(steps.numbers) - 2,
        ranks=(rank,),
        group=None,
        phase=None,
        phase_seconds=None,
        late_seconds=median,
        lost_by_step=cost,
        last_share=float(np.count_nonzero(cost)) / len(cost),
        confidence=MAX_CONFIDENCE,
        evidence=why,
        cause=HELD_CAUSES[cause],
    )
