"""One recording of a job, whatever source it was read from: and a window of it."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import PurePath
from typing import Any, NamedTuple, TypeVar

import numpy as np

from lockstep_catalogue.vocabulary import Outcome
from lockstep_outcomes.joblogs.model import JobLog
from lockstep_outcomes.progress.launch_finding import LaunchFinding
from lockstep_outcomes.progress.progress_events import HangRecord
from lockstep_records.events.event import Event
from lockstep_records.text.durations import parse_time
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.recording.operations import OperationTrace
from lockstep_reports.recording.steps import Steps
from lockstep_reports.recording.thinned import SECONDS, Thinned

_KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
    "reduce": "reduce",
}


def collective_kind(operation: str) -> str | None:
    """The kind of an operation by its name in torch or NCCL; None where it is none of the known."""
    return _KINDS.get(re.sub(r"[^a-z]", "", operation.lower()).removesuffix("base"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One rank in one collective; ``key`` is the same for all that took part.

    ``start`` and ``end`` are seconds by the rank's own clock; an unknown end is NaN.
    """

    key: tuple[str, int]
    kind: str
    rank: int
    start: float
    end: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One collective over its ranks; None where the clocks are too inexact to order arrivals."""

    kind: str
    start_spread_seconds: float | None
    last_rank: int | None
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CollectiveLog:
    """Collectives of at least two ranks, in the order of their end.

    Attributes:
        items: the collectives [collectives].
        ranks: global ranks, the rows of the matrices [ranks].
        seconds: from a rank's own start to its end: seconds, [ranks, collectives]; NaN where the
            rank took no part or its end is unknown.
        between: from the previous collective's end to this end: seconds, [ranks, collectives];
            NaN where either is unknown.
        offsets: seconds by which the clock of each rank is ahead; without ranks that have no end.
        drifts: seconds that a clock gains per second, by rank; None where the recording is too
            short to measure it.
        residual: how far apart the ranks still end after alignment: seconds, [collectives].
    """

    items: tuple[Collective, ...]
    ranks: tuple[int, ...]
    seconds: Matrix
    between: Matrix
    offsets: dict[int, float]
    drifts: dict[int, float | None]
    residual: Matrix


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOperation:
    """One operation as one rank recorded it; times in nanoseconds by that rank's clock.

    Attributes:
        order: position among the rank's operations, by time where that is recorded.
        peers: ranks that a send or receive is with; empty for a collective.
        is_send: whether it sends to them.
        is_point_to_point: whether it is a send or a receive, also where its peers are unknown.
        is_started: whether its kernel runs; None where the recorder was not asked for starts.
    """

    rank: int
    group: str
    sequence: int
    kind: str
    order: int
    created_ns: int | None
    completed_ns: int | None
    is_completed: bool
    peers: tuple[int, ...]
    is_send: bool
    is_point_to_point: bool
    is_started: bool | None


class PhaseAtHang(NamedTuple):
    """How far a rank is in a group: the last collective it entered, and the last it completed."""

    entered: int
    completed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FlightRecorderLog:
    """Dumps of some ranks, joined.

    Attributes:
        groups: members by name of the group.
        names: what a group is for, by its name.
        phases_at_hang: how far each rank is, by group and rank.
        collectives: the recorded collectives, in the order of the dumps.
        outstanding: by rank what it has entered and not completed, oldest first.
        overwritten: ranks whose ring no longer holds the oldest of these.
    """

    ranks: tuple[int, ...]
    groups: dict[str, tuple[int, ...]]
    names: dict[str, str]
    phases_at_hang: dict[tuple[str, int], PhaseAtHang]
    collectives: tuple[RankOperation, ...]
    outstanding: dict[int, tuple[RankOperation, ...]]
    overwritten: frozenset[int]


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
        launches: what answers of NCCL's status socket show.
        collectives: those that several ranks recorded.
        node_series: series of trouble on the nodes, before, in and after the run.
        doubts: sentences why nobody can be judged by it; empty where it can.
        thinned: the steps of which only quantiles by minute are left; None where all are whole.
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
    launches: LaunchFinding | None = None
    collectives: CollectiveLog | None = None
    node_series: tuple[NodeSeries, ...] = ()
    doubts: tuple[str, ...] = ()
    thinned: Thinned | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LogRecording:
    """The log of a job, a file or a folder, with no steps by rank; read at a wall clock time."""

    source_kind: str
    path: PurePath
    log: JobLog
    read_at_seconds: float


_FIRST_TIME = 1_000_000_000.0  # 2001: a smaller number counts steps
Selected = TypeVar("Selected", Steps, OperationTrace)


class Bound(NamedTuple):
    """One end of a window: a step, or a wall clock time in seconds since the epoch."""

    step: int | None = None
    wall_seconds: float | None = None


class Window(NamedTuple):
    """From the first bound to the last, both included; None where open."""

    first: Bound | None = None
    last: Bound | None = None


def parse_bound(text: str, now_seconds: float) -> Bound:
    """A step (``400``), a time (ISO 8601, epoch seconds, ``now``) or time ago; else ValueError."""
    if re.fullmatch(r"\d{1,15}(\.\d+)?", text):
        number = float(text)
        return Bound(wall_seconds=number) if number >= _FIRST_TIME else Bound(step=int(number))
    try:
        return Bound(wall_seconds=parse_time(text, now_seconds))
    except ValueError:
        raise ValueError(
            f"{text!r} is not a bound of a window; give a step (400), a time (2026-01-31T12:00:00,"
            " taken as UTC, or epoch seconds), now, or time ago (-15m)"
        ) from None


def cut_inside(recording: Recording, window: Window) -> Recording:
    """The part of a recording inside a window; ValueError where no step lies inside."""
    if window == Window():
        return recording
    steps = recording.steps
    logs = (recording.flight_recorder_log, recording.launches, recording.collectives)
    if not len(steps.numbers) or any(log is not None for log in logs):
        raise ValueError(
            f"{recording.path} is a recording of collectives, which have no steps to cut by; leave"
            " out --from and --to"
        )
    return _select(recording, _is_inside(steps, window), window)


def cut_before(recording: Recording, window: Window) -> Recording:
    """What lies before a window: its baseline; ValueError where no step does, or without begin."""
    if window.first is None:
        raise ValueError("a run is compared with itself only before a window; give --from")
    is_after = _is_inside(recording.steps, Window(first=window.first))
    return _select(recording, ~is_after & ~np.isnan(_times(recording.steps)), window)


def _is_inside(steps: Steps, window: Window) -> Flags:
    """Which steps lie inside a window [steps]."""
    inside = np.ones(len(steps.numbers), dtype=bool)
    for bound, sign in ((window.first, 1), (window.last, -1)):
        if bound is None:
            continue
        if bound.step is not None:
            inside &= sign * (steps.numbers - bound.step) >= 0
            continue
        if np.isnan(steps.start).all():
            raise ValueError("the recording tells no times; give --from and --to as steps")
        inside &= sign * (_times(steps) - (bound.wall_seconds or 0.0)) >= 0
    return inside


def _times(steps: Steps) -> Matrix:
    """Wall clock seconds at which each step began [steps]; step numbers if no clock is recorded."""
    times = nan_stats.lowest(steps.start, axis=0)
    return times if not np.isnan(times).all() else steps.numbers.astype(np.float64)


def _select(recording: Recording, selected: Flags, window: Window) -> Recording:
    """The recording with only the steps of a mask [steps]."""
    steps, thinned = recording.steps, recording.thinned
    by_minute = (
        () if thinned is None else thinned.describe_minutes(_minutes_inside(thinned, window))
    )
    if not selected.any():
        first, last = int(steps.numbers[0]), int(steps.numbers[-1])
        raise ValueError(
            " ".join(by_minute).removesuffix(".") + ": none can be judged"
            if by_minute
            else f"no step of {recording.path} lies there; it has steps {first} to {last}"
            + ("" if window.last is None else ", so look at --from and --to")
        )
    trace, part = recording.operations, select_columns(steps, selected)
    if trace is not None:
        trace = _select_last(trace, np.isin(trace.step, part.numbers))
    notes = () if selected.all() else (window_note(len(part.numbers), len(steps.numbers)),)
    part = replace(part, notes=(*steps.notes, *notes, *by_minute))
    return replace(recording, steps=part, operations=trace, thinned=None)


def _minutes_inside(thinned: Thinned, window: Window) -> Flags:
    """Which minutes a window touches [minutes]."""
    inside = np.ones(len(thinned.begin), dtype=bool)
    edges = (thinned.last, thinned.begin + SECONDS), (thinned.first, thinned.begin)
    for bound, sign, (numbers, times) in zip(window, (1, -1), edges, strict=True):
        if bound is None:
            continue
        if bound.step is not None:
            inside &= sign * (numbers - bound.step) >= 0
        else:
            inside &= sign * (times - (bound.wall_seconds or 0.0)) >= 0
    return inside


def steps_inside(numbers: Integers, window: Window) -> Flags:
    """Which step numbers lie between bounds that are steps; all, where none does."""
    first, last = (None if bound is None else bound.step for bound in window)
    inside: Flags = np.ones(len(numbers), dtype=bool) if first is None else numbers >= first
    inside = inside if last is None else inside & (numbers <= last)
    return inside if inside.any() else np.ones(len(numbers), dtype=bool)


def window_note(num_inside: int, num_recorded: int) -> str:
    """What a report on a part of a recording says of the rest."""
    return f"Only {num_inside:,} of {num_recorded:,} recorded steps are looked at."


def select_columns(steps: Steps, selected: Flags) -> Steps:
    """The steps of a mask [steps], and nothing else changed."""
    phases = {phase: values[:, selected] for phase, values in steps.phases.items()}
    durations = steps.durations
    if durations is not None:
        durations = replace(durations, counts=durations.counts[:, selected])
    return replace(_select_last(steps, selected), phases=phases, durations=durations)


def _select_last(record: Selected, selected: Flags) -> Selected:
    """The record with all of its arrays cut by a mask of their last axis."""
    arrays: dict[str, Any] = {
        name: values[..., selected]
        for name in (each.name for each in fields(record))
        if isinstance(values := getattr(record, name), np.ndarray)
    }
    return replace(record, **arrays)
