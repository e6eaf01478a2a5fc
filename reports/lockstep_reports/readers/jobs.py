"""Reads a job's folder: the pages of one attempt, the events and outcomes of all attempts."""

from pathlib import Path

import numpy as np

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_catalogue.vocabulary import ENDED_PHASES, OUTCOMES, Outcome
from lockstep_records.events import Event, read_events
from lockstep_records.jobs import list_attempts
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.pages import NoStepsError, read_attempt
from lockstep_reports.recording.recording import Attempt, Recording
from lockstep_reports.recording.steps import Steps


def recognises(path: Path) -> bool:
    """Whether it is a folder with attempts."""
    try:
        return path.is_dir() and bool(list_attempts(path))
    except OSError:
        return False


def read(path: Path, options: ReadOptions) -> Recording:
    """One attempt of the job; raises as ``read_job``."""
    return read_job(path, options.attempt)


def read_job(job: Path, attempt: int | None = None) -> Recording:
    """An attempt of a job: by default the newest that has steps.

    Raises:
        ValueError: the job has no such attempt, or no steps can be read.
        OSError: the folder cannot be read.
    """
    folders = list_attempts(job)
    numbers = [int(folder.name) for folder in folders]
    if attempt is not None and attempt not in numbers:
        recorded = ", ".join(map(str, numbers)) or "none"
        raise ValueError(f"attempt {attempt} is not in {job}; attempts there: {recorded}")
    candidates = [folder for folder in folders if attempt is None or int(folder.name) == attempt]
    events = tuple(read_events(job))
    steps = _newest_with_steps(job, candidates, events)
    attempts = tuple(Attempt(number=n, outcome=_outcome(n, events)) for n in numbers)
    return Recording(source_kind="pages", path=job, steps=steps, events=events, attempts=attempts)


def _newest_with_steps(job: Path, folders: list[Path], events: tuple[Event, ...]) -> Steps:
    """Steps of the last attempt that has any, or of one that ended without a step.

    Raises:
        NoStepsError: the first reason why there are none, where no attempt has ended or stands.
    """
    first_error: NoStepsError | None = None
    without: Steps | None = None
    for folder in reversed(folders):
        try:
            steps = read_attempt(folder)
        except NoStepsError as error:
            first_error = first_error or error
            steps = _without_pages(folder, events)
        if len(steps.numbers):
            return steps
        # The newest of them: of a job that never made a step its end is all there is to tell.
        if without is None and _is_news(steps, events):
            without = steps
    if without is not None:
        return without
    raise first_error or NoStepsError(f"job {job} has not completed a step yet; ask again later")


def _is_news(steps: Steps, events: tuple[Event, ...]) -> bool:
    """Whether an attempt without steps has ended, failed, or stands still."""
    kinds = {event.kind for event in events if event.attempt == steps.attempt}
    has_failed = any(m.phase in ENDED_PHASES or m.exception for m in steps.members)
    return has_failed or bool(kinds & {"attempt_ended", "hang"})


def _without_pages(folder: Path, events: tuple[Event, ...]) -> Steps:
    """An attempt whose ranks ended before they had a page, by its launcher's events."""
    started = [event for event in events if event.kind == "job_started"]
    size = started[-1].fields.get("world_size") if started else None
    empty = np.empty((0, 0))
    return Steps(
        job_id=folder.parent.name,
        attempt=int(folder.name),
        world_size=size if isinstance(size, int) and size > 0 else 1,
        members=(),
        numbers=np.empty(0, dtype=np.int64),
        seconds=empty,
        phases=dict.fromkeys(STEP_PHASES, empty),
        start=empty,
        first_arrival=empty,
        last_arrival=empty,
        loss=empty,
    )


def _outcome(number: int, events: tuple[Event, ...]) -> Outcome | None:
    """The outcome that the launcher wrote for an attempt; None when it wrote none."""
    ends = [event for event in events if event.kind == "attempt_ended" and event.attempt == number]
    if ends:
        outcome = ends[-1].fields.get("outcome")
        return next((known_outcome for known_outcome in OUTCOMES if known_outcome == outcome), None)
    # A launcher that was killed writes no end; a later attempt shows that this one failed.
    restarted = any(e.kind == "attempt_started" and e.attempt > number for e in events)
    return "failed" if restarted else None
