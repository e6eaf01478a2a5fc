"""Reads a job: the steps of one attempt, the events of all, and what became of the others."""

from dataclasses import dataclass
from pathlib import Path

from lockstep_catalogue.vocabulary import OUTCOMES, Outcome
from lockstep_records.events import Event, read_events
from lockstep_records.jobs import find_job, list_attempts
from lockstep_reports.readers import ReadOptions, find_reader
from lockstep_reports.readers.pages import NoStepsError, read_attempt
from lockstep_reports.recording.collectives import CollectiveLog
from lockstep_reports.recording.flight_recorder_log import FlightLog
from lockstep_reports.recording.log_recording import LogRecording
from lockstep_reports.recording.operations import OperationTrace
from lockstep_reports.recording.steps import Steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One attempt of a job. ``outcome`` is None while nobody has told it."""

    number: int
    outcome: Outcome | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Recording:
    """What a report is made from.

    Attributes:
        source_kind: which reader made it.
        events: events of the job over all attempts, in the order of writing.
        attempts: all attempts, first one first.
        operations: the operation rows that the steps were made from; None without.
        own_times: the durations are each rank's own, not drawn level by collectives.
        flights: what a flight recorder kept of the last collectives; None without.
        collectives: collectives seen by several ranks; None without.
    """

    source_kind: str
    path: Path
    steps: Steps
    events: tuple[Event, ...]
    attempts: tuple[Attempt, ...]
    operations: OperationTrace | None = None
    own_times: bool = False
    flights: FlightLog | None = None
    collectives: CollectiveLog | None = None

    @property
    def others(self) -> tuple[Attempt, ...]:
        """The attempts that the steps are not of."""
        return tuple(one for one in self.attempts if one.number != self.steps.attempt)


def read_source(named: str, options: ReadOptions) -> Recording | LogRecording:
    """What a path, a job id or a Prometheus' address names; a path is known by its content.

    Raises:
        ValueError: there is nothing of the kind, or it cannot be read; the text says why.
        OSError: a file cannot be read.
    """
    if named.startswith(("http://", "https://")):
        from lockstep_reports.readers.prometheus import read_url  # noqa: PLC0415  # loads httpx

        return read_url(named, options)
    path = Path(named)
    if path.exists():
        reader = find_reader(path.resolve())
        if reader is not None:
            return reader.load().read(path.resolve(), options)
        if path.is_file():
            raise ValueError(
                f"{named} is of no kind that a report can be made from; give a job, trace or log"
            )
    return read_job(find_job(named).resolve(), options.attempt)


def read_job(job: Path, attempt: int | None = None) -> Recording:
    """A job's attempt: the told one, or the newest that has steps.

    Raises:
        ValueError: the attempt is not there, or no steps can be read.
        OSError: the folder cannot be read.
    """
    folders = list_attempts(job)
    numbers = [int(folder.name) for folder in folders]
    if attempt is not None and attempt not in numbers:
        there = ", ".join(map(str, numbers)) or "none"
        raise ValueError(f"attempt {attempt} is not in {job}; attempts there: {there}")
    wanted = [folder for folder in folders if attempt is None or int(folder.name) == attempt]
    steps = _newest_with_steps(job, wanted)
    events = tuple(read_events(job))
    attempts = tuple(Attempt(number=n, outcome=_outcome(n, events)) for n in numbers)
    return Recording(source_kind="pages", path=job, steps=steps, events=events, attempts=attempts)


def _newest_with_steps(job: Path, folders: list[Path]) -> Steps:
    """Steps of the last attempt that has any; the first trouble met is told when none has."""
    trouble: NoStepsError | None = None
    for folder in reversed(folders):
        try:
            steps = read_attempt(folder)
        except NoStepsError as error:
            trouble = trouble or error
            continue
        if len(steps.numbers):
            return steps
    raise trouble or NoStepsError(f"job {job} has not completed a step yet; ask again later")


def _outcome(number: int, events: tuple[Event, ...]) -> Outcome | None:
    """What the launcher told of an attempt; one that gave way to a restart has failed."""
    told = [event for event in events if event.kind == "attempt_ended" and event.attempt == number]
    if told:
        written = told[-1].fields.get("outcome")
        return next((outcome for outcome in OUTCOMES if outcome == written), None)
    restarted = any(e.kind == "attempt_started" and e.attempt > number for e in events)
    return "failed" if restarted else None
