"""Names the cause of an episode from its phase and from what stands beside it in the pages."""

import numpy as np

from lockstep_reports.recording.steps import Steps
from lockstep_reports.verdict.verdict import Episode
from lockstep_reports.wording import duration, plural

_SHARE = 0.5  # of the lost time that a cause must explain


def cause_of(steps: Steps, episode: Episode) -> tuple[str | None, tuple[str, ...]]:
    """The cause and the sentence that tells it; None and nothing where it is not known."""
    inside = [member for member in steps.members if member.rank in episode.ranks]
    others = [member for member in steps.members if member.rank not in episode.ranks]
    told = [m.collection_seconds for m in inside if m.collection_seconds is not None]
    usual = [m.collection_seconds for m in others if m.collection_seconds is not None]
    beyond = float(np.median(told) - np.median(usual)) if told and usual else 0.0
    if episode.lost_seconds > 0 and beyond >= _SHARE * episode.lost_seconds:
        said = f"Python collected garbage there for {duration(beyond)} longer than elsewhere."
        return "garbage_collection", (said,)
    retries = max((m.allocator_retries for m in inside), default=0)
    if retries > max((m.allocator_retries for m in others), default=0):
        said = f"The GPU's allocator ran out and tried again {plural(retries, 'time')} there alone."
        return "device_memory", (said,)
    if episode.phase == "data":
        return "loader", ("The time went into loading data.",)
    return None, ()
