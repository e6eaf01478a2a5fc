"""Drops suspects that were brief and cheap, as any rank of a busy host is now and then."""

from collections import Counter

import numpy as np

from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.chance import tail_bound
from lockstep_reports.search.score import MIN_EFFECT_RATIO, Scores
from lockstep_reports.search.stretches import FALSE_ALARM_PROBABILITY
from lockstep_reports.search.suspects import Suspect


def drop_hiccups(
    steps: Steps, scores: Scores, suspects: list[Suspect], window_steps: int
) -> list[Suspect]:
    """The suspects without those that were brief and cheap, on one rank or another.

    Busy hosts pause for a few steps now and then. Such hiccups count when they cost the run as
    much as a step must lose to be late, or hit the same ranks more often than chance would. From
    ``window_steps`` late steps on none is brief.
    """
    cheap_seconds = MIN_EFFECT_RATIO * float(np.nansum(scores.step_seconds))
    brief = _brief(suspects, window_steps, cheap_seconds)
    if len({suspect.rows for suspect in brief}) > 1:
        # Where hiccups are usual, two may follow each other and look like one of twice the length.
        brief = _brief(suspects, 2 * window_steps, cheap_seconds)
    # Null hypothesis: a hiccup hits any of the ranks with the same probability, independently of
    # the others. The correction counts every rank that could have been hit too often.
    num_ranks = len(steps.members)
    repeated = {
        rows
        for rows, times in Counter(suspect.rows for suspect in brief).items()
        if tail_bound(times, len(brief), 1 / num_ranks) * num_ranks <= FALSE_ALARM_PROBABILITY
    }
    return [
        suspect
        for suspect in suspects
        if suspect.rows in repeated or not any(suspect is hiccup for hiccup in brief)
    ]


def _brief(suspects: list[Suspect], max_steps: int, cheap_seconds: float) -> list[Suspect]:
    return [
        suspect
        for suspect in suspects
        if np.count_nonzero(suspect.late) < max_steps and float(suspect.cost.sum()) < cheap_seconds
    ]
