"""The end of an attempt: its outcome, its times, losses that are not finite, resumes."""

import math
from dataclasses import dataclass

import numpy as np

from lockstep_catalogue.vocabulary import ENDED_PHASES, OUTCOMES, OutcomeOrRunning
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags
from lockstep_reports.recording.align import Alignment
from lockstep_reports.recording.recording import Recording
from lockstep_reports.recording.steps import Steps

# A rank in a long phase is silent for a while; two minutes are the default limit of a hang too.
_SILENT_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NotFinite:
    """Steps whose loss was NaN or infinite.

    Attributes:
        count: how many of the recorded steps, and ``share`` as a share of them.
        at_end: whether the last recorded step is one of them.
        ranks: that had such a loss; None where all had.
    """

    first_step: int
    last_step: int
    count: int
    share: float
    at_end: bool
    ranks: tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Resume:
    """A resume from an older checkpoint than the newest, or than was asked for.

    Attributes:
        passed_over: newer ones that were not valid.
        steps_lost: steps completed before that had to be done again; None where unknown.
    """

    step: int
    passed_over: int
    steps_lost: int | None


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


def measure_times(recording: Recording, alignment: Alignment) -> Times:
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
    first_step = nan_stats.quantile_number(alignment.start, 0)
    last_step = nan_stats.quantile_number(alignment.start + steps.seconds, 1)
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


def final_outcome(recording: Recording) -> OutcomeOrRunning:
    """The outcome of the attempt; ``running`` or ``unknown`` where none was recorded."""
    members = recording.steps.members
    by_number = {attempt.number: attempt.outcome for attempt in recording.attempts}
    outcome = by_number[recording.steps.attempt]
    if outcome is not None:
        return outcome
    if recording.steps.is_running:
        return "running"
    judged = next((name for name in OUTCOMES if name == recording.end.get("outcome")), None)
    if judged is not None:
        return judged
    # A lock that nobody holds is a process that has gone, however fresh its last word is.
    if any(member.is_running is not None for member in members):
        return "unknown"
    newest = max((member.progress_seconds for member in members), default=0.0)
    is_alive = any(member.phase not in ENDED_PHASES for member in members)
    # Progress in the future comes from another machine's clock and proves nothing.
    is_fresh = 0 <= recording.read_at_seconds - newest < _SILENT_SECONDS
    return "running" if is_alive and is_fresh else "unknown"


def _seconds_between(begin: float | None, end: float | None) -> float | None:
    if begin is None or end is None:
        return None
    # Clocks of two nodes can put an end before its begin.
    return max(0.0, end - begin)


def find_not_finite(steps: Steps) -> NotFinite | None:
    """The steps whose loss was not finite; None where there are none, or nobody recorded them."""
    if steps.not_finite is None or not len(steps.numbers):
        return None
    # The flag is set for gradient norms too, which a scaler of gradients lets overflow on purpose.
    bad: Flags = (np.nan_to_num(steps.not_finite) > 0) & ~np.isfinite(steps.loss)
    columns = np.flatnonzero(bad.any(axis=0))
    if not len(columns):
        return None
    rows = np.flatnonzero(bad.any(axis=1))
    return NotFinite(
        first_step=int(steps.numbers[columns[0]]),
        last_step=int(steps.numbers[columns[-1]]),
        count=len(columns),
        share=len(columns) / len(steps.numbers),
        at_end=bool(columns[-1] == len(steps.numbers) - 1),
        ranks=None if len(rows) == len(steps.members) else tuple(steps.ranks[r] for r in rows),
    )


def find_older_resume(recording: Recording) -> Resume | None:
    """The resume of the attempt, where it passed over a newer checkpoint; else None."""
    for event in recording.events:
        step = event.fields.get("step")
        if event.kind != "job_resumed" or event.attempt != recording.steps.attempt:
            continue
        if event.fields.get("fallback") is True and isinstance(step, int):
            passed_over, lost = event.fields.get("passed_over"), event.fields.get("steps_lost")
            return Resume(
                step=step,
                passed_over=passed_over if isinstance(passed_over, int) else 0,
                steps_lost=lost if isinstance(lost, int) else None,
            )
    return None
