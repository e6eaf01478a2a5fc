"""Why a recording cannot tell that nobody was slow: "nobody" is a claim, and it needs evidence.

A late rank shows only where somebody's waiting for it was recorded, or its own work apart from that
of the others. Where neither could have been, the verdict is unknown.
"""

import numpy as np

from lockstep_catalogue.limits import MAX_OTHER_RATIO, MIN_WAIT_RATIO
from lockstep_reports import nan_stats
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import Scores
from lockstep_reports.verdict.evidence import missing_ranks
from lockstep_reports.wording import duration, percent, plural

# Rows of one rank that are missing among the others', before they may hide an episode.
_MAX_MISSING_RATIO, _MIN_MISSING_ROWS = 0.1, 3


def why_blind(steps: Steps, scores: Scores) -> tuple[str, ...]:
    """A sentence for each reason why a slow rank might not show; empty where it would."""
    reasons = (
        _explain_missing_waits(steps, scores),
        _unclaimed_time(steps, scores),
        _explain_host_times(steps),
        *missing_ranks(steps, "any of them may be the slow one"),
        _missing_rows(steps),
    )
    return tuple(reason for reason in reasons if reason is not None)


def _explain_missing_waits(steps: Steps, scores: Scores) -> str | None:
    longest = nan_stats.number(nan_stats.highest(nan_stats.median(steps.sync, axis=1), axis=0))
    if longest is None or longest >= MIN_WAIT_RATIO * scores.median_step_seconds:
        return None
    return (
        f"No rank waited for the others for more than {duration(longest)} a step, so the waiting "
        "of this loop is not recorded or hidden in other phases, and a late rank would not show."
    )


def _unclaimed_time(steps: Steps, scores: Scores) -> str | None:
    other = nan_stats.median_number(steps.phases["other"]) or 0.0
    ratio = other / scores.median_step_seconds if scores.median_step_seconds else 0.0
    if not ratio > MAX_OTHER_RATIO:
        return None
    return (
        f"{percent(ratio)} of a step lies in no marked phase; waiting in there is taken for work."
    )


def _explain_host_times(steps: Steps) -> str | None:
    if steps.by_device is None:
        return None
    has_device = np.array([bool(member.gpu_uuid) for member in steps.members])
    by_host = has_device & (nan_stats.median(steps.by_device, axis=1) < 1)
    if not by_host.any():
        return None
    return (
        f"{plural(int(by_host.sum()), 'rank')} with a GPU recorded times of the host, which runs "
        "ahead of the device: a slow GPU need not show in them."
    )


def _missing_rows(steps: Steps) -> str | None:
    num_missing = np.isnan(steps.seconds).sum(axis=1)
    few = max(_MIN_MISSING_ROWS, _MAX_MISSING_RATIO * len(steps.numbers))
    rows = np.flatnonzero(num_missing > few)
    if not len(rows):
        return None
    worst = int(np.argmax(num_missing))
    return (
        f"{plural(len(rows), 'rank')} left no row of many steps (rank {steps.ranks[worst]}: "
        f"{num_missing[worst]:,} of {len(steps.numbers):,} are missing)."
    )
