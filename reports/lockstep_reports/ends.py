"""How an attempt ended or stands, by its launcher's word, else by its pages and their locks."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_records.attempts import pages_of
from lockstep_records.hang_events import HangRecord, record_of
from lockstep_records.hangs import HangTimeouts, find_hang, switched_timeouts
from lockstep_records.outcomes.classify import classify
from lockstep_records.outcomes.of_job import evidence_of
from lockstep_reports.arrays import Flags
from lockstep_reports.recording.recording import Recording
from lockstep_reports.recording.steps import Steps


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


def end_fields(recording: Recording) -> Mapping[str, Any]:
    """Fields of the attempt's last event; by its pages where no launcher wrote one; else empty."""
    steps = recording.steps
    for event in reversed(recording.events):
        if event.kind == "attempt_ended" and event.attempt == steps.attempt:
            return event.fields
    if recording.source_kind != "pages" or is_running(steps):
        return {}
    # Pages that say neither done nor failed may be a copy of those of a job that runs.
    ended = [m.phase in ENDED_PHASES for m in steps.members]
    has_failed = any(m.phase == "failed" or m.exception is not None for m in steps.members)
    is_whole = len(steps.members) == steps.world_size and bool(ended) and all(ended)
    if not has_failed and not is_whole:
        return {}
    try:
        return classify(evidence_of(recording.path, steps.attempt)).event_fields()
    except OSError:  # the folder is being removed
        return {}


def hang_now(recording: Recording, now_seconds: float) -> HangRecord | None:
    """The hang of a job that runs on this node, whoever started it; None without."""
    attempt = recording.steps.attempt
    if recording.source_kind != "pages" or not is_running(recording.steps):
        return None
    try:
        pages = pages_of(recording.path / str(attempt))
    except OSError:  # the folder is being removed
        return None
    timeouts = switched_timeouts(recording.path, HangTimeouts())
    hang = find_hang(pages, time.monotonic_ns(), timeouts)
    return None if hang is None else record_of(hang, attempt, now_seconds)


def is_running(steps: Steps) -> bool:
    """Whether a rank holds the lock of its page."""
    return any(member.is_running for member in steps.members)


def not_finite(steps: Steps) -> NotFinite | None:
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


def older_resume(recording: Recording) -> Resume | None:
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
