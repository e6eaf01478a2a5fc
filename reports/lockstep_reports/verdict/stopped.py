"""Finds processes that stood still: stopped by a signal, frozen by their cgroup, or paused.

Their pages say for how long, so that chance has no part in it. A stop counts as far as the job lost
by it, and in which other ranks were not stopped as well: a machine that pauses has no slow rank.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from lockstep_catalogue.labels import OWN_WORK_PHASES
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import MIN_EFFECT_RATIO, Scores
from lockstep_reports.verdict.verdict import MAX_CONFIDENCE, Episode
from lockstep_reports.wording import duration, plural

# Of the stop by which half of the time is reached: far shorter ones are of something else.
_LEAST_RATIO = 0.25
# A gap of so many median ones is one of 1,000 where stops come at a steady rate.
_GAPS_OF_MEDIAN = 10.0
_MIN_USUAL_STEPS = 10  # without a stop, from which to know what is usual


def stopped_episodes(steps: Steps, scores: Scores, window_steps: int) -> list[Episode]:
    """Those of ranks whose processes stood still, again and again or for long.

    From ``window_steps`` stops on none is brief, and a brief one that cost little is left out.
    """
    if steps.stopped is None:
        return []
    stopped = np.nan_to_num(steps.stopped)
    unshared = _beyond_others(steps, stopped)
    cheap_seconds = MIN_EFFECT_RATIO * float(np.nansum(scores.step_seconds))
    episodes = []
    for row in np.flatnonzero(unshared.any(axis=1)).tolist():
        lost = _lost_seconds(steps, scores, row, unshared[row])
        for columns in _split(steps, row, _alike(stopped[row])):
            inside = slice(int(columns[0]), int(columns[-1]) + 1)
            cost = lost[inside]
            is_brief = len(columns) < window_steps and cost.sum() < cheap_seconds
            if not is_brief and cost.sum() >= scores.threshold / 2 * len(cost):
                episodes.append(_episode(steps, row, columns, cost))
    return episodes


def _beyond_others(steps: Steps, stopped: Matrix) -> Matrix:
    """Stops beyond those of ranks on other nodes, or of any others on a single one: seconds.

    Of [ranks, steps] both; a thread that notices a stop may write it into the step after.
    """
    group_of = np.arange(len(stopped))
    if len(steps.nodes) > 1:
        group_of = np.array([steps.nodes.index(member.node) for member in steps.members])
    near = np.pad(stopped, ((0, 0), (1, 1)))
    near = np.maximum(np.maximum(near[:, :-2], near[:, 1:-1]), near[:, 2:])
    highest = np.array([near[group_of == group].max(axis=0) for group in np.unique(group_of)])
    if len(highest) == 1:
        return stopped
    second, first = np.partition(highest, -2, axis=0)[-2:]
    others = np.where(highest == first, second, first)
    unshared: Matrix = np.maximum(stopped - others[group_of], 0.0)
    return unshared


def _lost_seconds(steps: Steps, scores: Scores, row: int, stopped: Matrix) -> Matrix:
    """What the job lost in each step by the stops of a rank: seconds, [steps] both.

    The step is longer, or the others wait longer than the rank: in this step, in the one before or,
    for what comes after the step's last collective, in the next.
    """
    if steps.is_independent:
        return stopped
    sync = np.nan_to_num(steps.sync)
    waited = nan_stats.median(np.delete(sync, row, axis=0), axis=0) - sync[row]
    is_usual = stopped == 0
    longer = np.zeros(len(stopped))
    if np.count_nonzero(is_usual) >= _MIN_USUAL_STEPS:
        longer = scores.job_seconds - nan_stats.median(scores.job_seconds[is_usual])
    effect = np.pad(np.fmax(waited, longer), 1)
    lost: Matrix = np.clip(np.fmax(np.fmax(effect[:-2], effect[1:-1]), effect[2:]), 0.0, stopped)
    return lost


def _alike(stopped: Matrix) -> Integers:
    """Steps of the stops [steps] that are not far shorter than those that make up the time."""
    lengths = np.sort(stopped)
    half = lengths[np.searchsorted(lengths.cumsum(), lengths.sum() / 2)]
    return np.flatnonzero(stopped >= _LEAST_RATIO * half)


def _split(steps: Steps, row: int, columns: Integers) -> Iterator[Integers]:
    """The stops of a rank in parts without a long gap."""
    times = np.nan_to_num(steps.seconds[row]).cumsum()[columns]
    gaps = np.diff(times)
    longest = _GAPS_OF_MEDIAN * float(np.median(gaps)) if len(gaps) else 0.0
    yield from np.split(columns, 1 + np.flatnonzero(gaps > longest))


def _episode(steps: Steps, row: int, columns: Integers, cost: Matrix) -> Episode:
    assert steps.stopped is not None
    stops, rank = steps.stopped[row, columns], steps.ranks[row]
    first, last = int(columns[0]), int(columns[-1])
    total, median = float(stops.sum()), float(np.median(stops))
    start, end = int(steps.numbers[first]), int(steps.numbers[last])
    why = (
        (
            f"The process of rank {rank} stood still in {plural(len(stops), 'step')}, for "
            f"{duration(total)} in all, from step {start} to {end}: none of its threads had a "
            "core, and none waited for one."
        ),
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
        stood_still_seconds=total,
    )


def remove_stops(steps: Steps, stopped: Sequence[Episode]) -> Steps:
    """The same steps as if these processes had not stood still, but for stops in collectives."""
    if not stopped or steps.stopped is None:
        return steps
    own = np.sum([steps.phases[name] for name in OWN_WORK_PHASES], axis=0)
    seconds = np.zeros_like(own)
    for episode in stopped:
        row, columns = steps.ranks.index(episode.ranks[0]), episode.columns
        still = np.nan_to_num(steps.stopped[row])
        usual = own[row, still == 0]
        if len(usual) < _MIN_USUAL_STEPS:
            usual = np.delete(own, row, axis=0)
        longer = np.maximum(np.nan_to_num(own[row, columns]) - nan_stats.median_number(usual), 0.0)
        here = np.minimum(still[columns], longer)
        rest = np.append((still[columns] - here)[1:], 0.0)
        seconds[row, columns] = here + np.minimum(rest, longer - here)
    return steps.with_less_work(seconds)
