"""The run on the wall clock: start-up, run, and what came after the last progress; its outcome."""

import math
from dataclasses import dataclass

from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_reports import nan_stats
from lockstep_reports.align import Alignment
from lockstep_reports.recording.recording import Recording

_SILENT_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """Spans of the attempt in seconds and their ends on the wall clock; None where unknown.

    Attributes:
        startup_seconds: first sign of any rank to the start of its first recorded step.
        run_seconds: start of the first to end of the last recorded step.
        seconds_after_last_progress: last mark of any rank to the last event of the attempt.
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


def times(recording: Recording, alignment: Alignment) -> Times:
    """When things happened in the attempt."""
    steps = recording.steps
    told = [
        event.time
        for event in recording.events
        if event.attempt == steps.attempt and math.isfinite(event.time)
    ]
    born = [member.born_seconds for member in steps.members if member.born_seconds]
    marks = [member.progress_seconds for member in steps.members if member.progress_seconds]
    first_sign, last_progress = min([*told, *born], default=None), max(marks, default=None)
    last_sign = max([*told, *marks], default=None)
    first_step = nan_stats.number(nan_stats.quantile(alignment.start, 0))
    last_step = nan_stats.number(nan_stats.quantile(alignment.start + steps.seconds, 1))
    return Times(
        first_sign=first_sign,
        first_step=first_step,
        last_progress=last_progress,
        last_sign=last_sign,
        startup_seconds=_between(first_sign, first_step),
        run_seconds=_between(first_step, last_step),
        seconds_after_last_progress=_between(last_progress, max(told, default=None)),
        wall_seconds=_between(first_sign, last_sign),
    )


def outcome(recording: Recording, now_seconds: float) -> str:
    """How the attempt ended: an outcome of the vocabulary; running or unknown when untold."""
    numbers = [attempt.number for attempt in recording.attempts]
    told = recording.attempts[numbers.index(recording.steps.attempt)].outcome
    if told is not None:
        return told
    newest = max((member.progress_seconds for member in recording.steps.members), default=0.0)
    alive = any(member.phase not in ENDED_PHASES for member in recording.steps.members)
    fresh = 0 <= now_seconds - newest < _SILENT_SECONDS
    return "running" if alive and fresh else "unknown"


def _between(begin: float | None, end: float | None) -> float | None:
    if begin is None or end is None:
        return None
    return max(0.0, end - begin)
