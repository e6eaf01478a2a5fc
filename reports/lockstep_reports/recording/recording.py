"""One recording of a job, whatever source it was read from: all that an analysis needs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from lockstep_catalogue.vocabulary import Outcome
from lockstep_outcomes.joblogs.model import JobLog
from lockstep_outcomes.progress.hang_events import HangRecord
from lockstep_records.events.event import Event
from lockstep_reports.recording.collectives import CollectiveLog, FlightRecorderLog
from lockstep_reports.recording.operations import OperationTrace
from lockstep_reports.recording.steps import Steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """An attempt of a job.

    Attributes:
        outcome: None until the attempt has ended.
    """

    number: int
    outcome: Outcome | None


Points = Sequence[tuple[float, float]]
"""Times and values of a series."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSeries:
    """A series of a job's nodes that shows one kind of trouble, its ``cause``.

    Attributes:
        source: address and metric.
        least: value that counts as a sign.
        resolution_seconds: by how much either end of trouble may be off.
    """

    cause: str
    source: str
    unit: str
    least: float
    points_by_node: Mapping[str, Points]
    resolution_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Recording:
    """What a report on steps is made from; what the source has not is None or empty.

    Attributes:
        source_kind: what its reader reads, such as pages or operations.
        events: of the job over all attempts, in the order of writing.
        read_at_seconds: wall clock at which it was read, to tell a running job from one that fell
            silent; NaN where the source cannot be of a running job.
        end: fields of the attempt's end, by its launcher or its pages.
        hang: that of a job which ran on this node when it was read.
        stacks: files of stacks by rank, written in a hang.
        operations: the operation rows that the steps were computed from.
        own_times: whether durations are each rank's own, not levelled by collectives.
        flight_recorder_log: what Flight Recorder dumps hold of the last collectives.
        collectives: those that several ranks recorded.
        node_series: series of trouble on the nodes, before, in and after the run.
    """

    source_kind: str
    path: PurePath
    steps: Steps
    events: tuple[Event, ...] = ()
    attempts: tuple[Attempt, ...] = (Attempt(number=0, outcome=None),)
    read_at_seconds: float = math.nan
    end: Mapping[str, Any] = field(default_factory=dict)
    hang: HangRecord | None = None
    stacks: tuple[tuple[int, PurePath], ...] = ()
    operations: OperationTrace | None = None
    own_times: bool = False
    flight_recorder_log: FlightRecorderLog | None = None
    collectives: CollectiveLog | None = None
    node_series: tuple[NodeSeries, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LogRecording:
    """The log of a job, a file or a folder, with no steps by rank; read at a wall clock time."""

    source_kind: str
    path: PurePath
    log: JobLog
    read_at_seconds: float
