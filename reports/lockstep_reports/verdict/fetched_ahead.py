"""When a loader's workers fell behind: steps are late only once what was fetched is used up."""

from dataclasses import replace

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.recording.steps import Steps
from lockstep_reports.verdict.verdict import Episode

# Steps that tell how long one was before. A smaller slowdown takes many steps to use the batches
# up, and how many is then mostly noise.
_USUAL_STEPS = 50
_MIN_LONGER = 0.03


def with_fetched_ahead(steps: Steps, episode: Episode) -> Episode:
    """The episode from the step in which its loader's workers fell behind.

    Where workers bring a batch in w and a step takes s < w, they fall behind by 1 - s / w of a
    batch in each step. The episode's steps take w. Of the batches ahead each worker has one in the
    making, of which s / w is missing on average when the loop asks for it.
    """
    inside = [member for member in steps.members if member.rank in episode.ranks]
    ahead, workers = max((member.batches_ahead, member.loader_workers) for member in inside)
    first = episode.columns.start
    if episode.phase != "data" or not ahead or first == 0:
        return episode
    seconds = nan_stats.median(steps.seconds, axis=0)
    # Means: workers that began together bring their batches together, one step in so many waits.
    before = float(np.nanmean(seconds[max(0, first - _USUAL_STEPS) : first]))
    during = float(np.nanmean(seconds[episode.columns]))
    if not during >= (1 + _MIN_LONGER) * before > 0:
        return episode
    ratio = before / during
    num_used = min(first, max(0, round((ahead - workers * ratio) / (1 - ratio))))
    start = first - num_used
    why = (
        f"Its loader's workers fetch up to {ahead:,} batches ahead: "
        f"they fell behind from about step {steps.numbers[start]} on, and what they had fetched "
        f"lasted to step {episode.start_step}."
    )
    return replace(
        episode,
        start_step=int(steps.numbers[start]),
        columns=slice(start, episode.columns.stop),
        lost_by_step=np.concatenate([np.zeros(num_used), episode.lost_by_step]),
        evidence=(*episode.evidence, why),
    )
