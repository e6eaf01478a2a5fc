"""The run on the wall clock: start-up, run, and what came after the last progress; its outcome."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep_catalogue.vocabulary import ENDED_PHASES, OUTCOMES, OutcomeOrRunning
from lockstep_reports import nan_stats
from lockstep_reports.align import Alignment
from lockstep_reports.ends import is_running
from lockstep_reports.recording.recording import Recording

# A rank in a long phase is silent for a while; two minutes are the default limit of a hang too.
_SILENT_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """Spans of the attempt in seconds and their ends on the wall clock; None where unknown.

    Attributes:
        startup_seconds: first sign of any rank to the start of its first recorded step.
        run_seconds: start of the first to end of the last recorded step.
        seconds_after_last_progress: last progress of any rank to the last event of the attempt.
        wall_seconds: first sign to last sign.
    """

    first_sign: float | None
    first_step: float | None
    last_progress: float | None
    last_sign: float | None
    startup_seconds: float | None
    run_seconds: float | None
    seconds_after_last_progress: float | None
    wall_seconds: float | None


def run_times(recording: Recording, alignment: Alignment) -> Times:
    """Signs of life, steps and progress of the attempt on the wall clock."""
    steps = recording.steps
    # events.jsonl is text, and `NaN` is a number to Python's JSON.
    events = [
        event.time
        for event in recording.events
        if event.attempt == steps.attempt and math.isfinite(event.time)
    ]
    births = [
        member.page_created_seconds for member in steps.members if member.page_created_seconds
    ]
    progress = [member.progress_seconds for member in steps.members if member.progress_seconds]
    first_sign, last_progress = min([*events, *births], default=None), max(progress, default=None)
    last_sign = max([*events, *progress], default=None)
    first_step = nan_stats.number(nan_stats.quantile(alignment.start, 0))
    last_step = nan_stats.number(nan_stats.quantile(alignment.start + steps.seconds, 1))
    return Times(
        first_sign=first_sign,
        first_step=first_step,
        last_progress=last_progress,
        last_sign=last_sign,
        startup_seconds=_seconds_between(first_sign, first_step),
        run_seconds=_seconds_between(first_step, last_step),
        seconds_after_last_progress=_seconds_between(last_progress, max(events, default=None)),
        wall_seconds=_seconds_between(first_sign, last_sign),
    )


def final_outcome(
    recording: Recording, end: Mapping[str, Any], now_seconds: float
) -> OutcomeOrRunning:
    """The outcome of the attempt; ``running`` or ``unknown`` where none was recorded.

    Args:
        recording: any.
        end: fields of its end; empty where none is known.
        now_seconds: wall clock, to tell a running job from one that fell silent.
    """
    by_number = {attempt.number: attempt.outcome for attempt in recording.attempts}
    outcome = by_number[recording.steps.attempt]
    if outcome is not None:
        return outcome
    if is_running(recording.steps):
        return "running"
    judged = next((name for name in OUTCOMES if name == end.get("outcome")), None)
    if judged is not None:
        return judged
    # A lock that nobody holds is a process that has gone, however fresh its last word is.
    if any(member.is_running is not None for member in recording.steps.members):
        return "unknown"
    newest = max((member.progress_seconds for member in recording.steps.members), default=0.0)
    is_alive = any(member.phase not in ENDED_PHASES for member in recording.steps.members)
    # Progress in the future comes from another machine's clock and proves nothing.
    is_fresh = 0 <= now_seconds - newest < _SILENT_SECONDS
    return "running" if is_alive and is_fresh else "unknown"


def _seconds_between(begin: float | None, end: float | None) -> float | None:
    if begin is None or end is None:
        return None
    # Clocks of two nodes can put an end before its begin.
    return max(0.0, end - begin)
