"""A window bounded by steps or times, and the part of a recording inside or before it."""

import re
from dataclasses import fields, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from lockstep_records.text.durations import parse_time
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.recording.operations import OperationTrace
from lockstep_reports.recording.recording import Recording
from lockstep_reports.recording.steps import Steps

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
    steps = recording.steps
    if not selected.any():
        first, last = int(steps.numbers[0]), int(steps.numbers[-1])
        raise ValueError(
            f"no step of {recording.path} lies there; it has steps {first} to {last}"
            + ("" if window.last is None else ", so look at --from and --to")
        )
    trace, part = recording.operations, select_columns(steps, selected)
    if trace is not None:
        trace = _select_last(trace, np.isin(trace.step, part.numbers))
    if not selected.all():
        note = window_note(len(part.numbers), len(steps.numbers))
        part = replace(part, notes=(*steps.notes, note))
    return replace(recording, steps=part, operations=trace)


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
