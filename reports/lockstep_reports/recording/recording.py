"""One recording of a job, whatever source it was read from."""

from dataclasses import dataclass
from pathlib import Path

from lockstep_catalogue.vocabulary import Outcome
from lockstep_records.events import Event
from lockstep_reports.recording.collectives import CollectiveLog
from lockstep_reports.recording.flight_recorder_log import FlightRecorderLog
from lockstep_reports.recording.operations import OperationTrace
from lockstep_reports.recording.steps import Steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One attempt of a job. ``outcome`` is None until the attempt has ended."""

    number: int
    outcome: Outcome | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Recording:
    """What a report is made from.

    Attributes:
        source_kind: kind of the reader, as in ``readers.READERS``.
        path: what was read.
        events: events of the job over all attempts, in the order of writing.
        attempts: all attempts, first one first.
        operations: the operation rows that the steps were computed from; None without.
        own_times: whether durations are each rank's own, not levelled by collectives.
        flight_recorder_log: what Flight Recorder dumps hold of the last collectives; None without.
        collectives: collectives that several ranks recorded; None without.
    """

    source_kind: str
    path: Path
    steps: Steps
    events: tuple[Event, ...]
    attempts: tuple[Attempt, ...]
    operations: OperationTrace | None = None
    own_times: bool = False
    flight_recorder_log: FlightRecorderLog | None = None
    collectives: CollectiveLog | None = None
