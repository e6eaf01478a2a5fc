"""Names the cause of an episode from its phase and from the counters of its ranks' pages."""

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.analysis.score import excess
from lockstep_reports.recording.steps import Steps
from lockstep_reports.verdict.verdict import Episode
from lockstep_reports.wording import duration, plural

_MIN_EXPLAINED_SHARE = 0.5  # of the lost time; less leaves room for another cause of equal size


def cause_of(steps: Steps, episode: Episode) -> tuple[str | None, tuple[str, ...]]:
    """The cause and a sentence about it; None and no sentence where it is unknown."""
    inside = [member for member in steps.members if member.rank in episode.ranks]
    others = [member for member in steps.members if member.rank not in episode.ranks]
    own = [m.collection_seconds for m in inside if m.collection_seconds is not None]
    usual = [m.collection_seconds for m in others if m.collection_seconds is not None]
    # Counters cover the whole run, so what all ranks spend on collection is subtracted.
    beyond = float(np.median(own) - np.median(usual)) if own and usual else 0.0
    if episode.lost_seconds > 0 and beyond >= _MIN_EXPLAINED_SHARE * episode.lost_seconds:
        sentence = f"Python collected garbage there for {duration(beyond)} longer than elsewhere."
        return "garbage_collection", (sentence,)
    retries = max((m.allocator_retries for m in inside), default=0)
    if retries > max((m.allocator_retries for m in others), default=0):
        times = plural(retries, "time")
        sentence = f"The GPU's allocator ran out and tried again {times} there alone."
        return "device_memory", (sentence,)
    if episode.phase == "data":
        return "loader", ("The time went into loading data.",)
    if (held_up := _held_up_seconds(steps, episode)) is not None:
        sentence = f"Its device waited for the host {duration(held_up)} longer in a late step."
        return "host_bound", (sentence,)
    return None, ()


def _held_up_seconds(steps: Steps, episode: Episode) -> float | None:
    """By how much longer a step's device waits for the host than others do, if that explains it."""
    if steps.host_bound is None or not episode.phase_seconds:
        return None
    rows = [row for row, rank in enumerate(steps.ranks) if rank in episode.ranks]
    columns = steps.host_bound[:, episode.columns]
    beyond = float(nan_stats.median(excess(columns, rows)))
    return beyond if beyond >= _MIN_EXPLAINED_SHARE * episode.phase_seconds else None
