"""Reads a job's folder: the pages of one attempt, the events and outcomes of all attempts."""

from pathlib import Path

from lockstep_catalogue.vocabulary import OUTCOMES, Outcome
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
    steps = _newest_with_steps(job, candidates)
    events = tuple(read_events(job))
    attempts = tuple(Attempt(number=n, outcome=_outcome(n, events)) for n in numbers)
    return Recording(source_kind="pages", path=job, steps=steps, events=events, attempts=attempts)


def _newest_with_steps(job: Path, folders: list[Path]) -> Steps:
    """Steps of the last attempt that has any; raises the first error when none has."""
    first_error: NoStepsError | None = None
    for folder in reversed(folders):
        try:
            steps = read_attempt(folder)
        except NoStepsError as error:
            first_error = first_error or error
            continue
        if len(steps.numbers):
            return steps
    raise first_error or NoStepsError(f"job {job} has not completed a step yet; ask again later")


def _outcome(number: int, events: tuple[Event, ...]) -> Outcome | None:
    """The outcome that the launcher wrote for an attempt; None when it wrote none."""
    ends = [event for event in events if event.kind == "attempt_ended" and event.attempt == number]
    if ends:
        outcome = ends[-1].fields.get("outcome")
        return next((known_outcome for known_outcome in OUTCOMES if known_outcome == outcome), None)
    # A launcher that was killed writes no end; a later attempt shows that this one failed.
    restarted = any(e.kind == "attempt_started" and e.attempt > number for e in events)
    return "failed" if restarted else None
