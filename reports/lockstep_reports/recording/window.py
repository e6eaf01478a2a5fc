"""Cuts a recording to a window, or to what lies before one."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags
from lockstep_reports.recording.operations import OperationTrace
from lockstep_reports.recording.recording import Recording
from lockstep_reports.recording.steps import Steps
from lockstep_reports.recording.window_spec import Window

_BY_ROW = (
    "type_of", "replica", "stage", "shard", "rank", "step", "start", "duration", "order", "chunk",
    "place", "batch",
)  # fmt: skip


def cut(recording: Recording, window: Window) -> Recording:
    """The part of a recording inside a window.

    Raises:
        ValueError: nothing lies inside, or the recording has no steps to cut by.
    """
    if window.is_open:
        return recording
    steps = recording.steps
    if (
        not len(steps.numbers)
        or recording.flight_recorder_log is not None
        or recording.collectives is not None
    ):
        raise ValueError(
            f"{recording.path} is a recording of collectives, which have no steps to cut by; leave"
            " out --from and --to"
        )
    return _kept(recording, _inside(steps, window), window)


def before(recording: Recording, window: Window) -> Recording:
    """What lies before a window: its baseline.

    Raises:
        ValueError: nothing lies before it.
    """
    if window.first is None:
        raise ValueError("a run is compared with itself only before a window; give --from")
    after = _inside(recording.steps, Window(first=window.first))
    return _kept(recording, ~after & ~np.isnan(_times(recording.steps)), window)


def _inside(steps: Steps, window: Window) -> Flags:
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


def _times(steps: Steps) -> NDArray[np.float64]:
    """When each step began; its number where no clock is told."""
    times = nan_stats.lowest(steps.start, axis=0)
    return times if not np.isnan(times).all() else steps.numbers.astype(np.float64)


def _kept(recording: Recording, kept: Flags, window: Window) -> Recording:
    steps = recording.steps
    if not kept.any():
        first, last = int(steps.numbers[0]), int(steps.numbers[-1])
        raise ValueError(
            f"no step of {recording.path} lies there; it has steps {first} to {last}"
            + ("" if window.last is None else ", so look at --from and --to")
        )
    trace = recording.operations
    return replace(
        recording,
        steps=_cut_steps(steps, kept),
        operations=None if trace is None else _cut_trace(trace, steps.numbers[kept]),
    )


def _cut_steps(steps: Steps, kept: Flags) -> Steps:
    names = ("seconds", "start", "first_arrival", "last_arrival", "loss")
    matrices = {name: getattr(steps, name)[:, kept] for name in names}
    whole, left = len(steps.numbers), int(np.count_nonzero(kept))
    told = () if left == whole else (f"Only {left:,} of {whole:,} recorded steps are looked at.",)
    return replace(
        steps,
        numbers=steps.numbers[kept],
        phases={phase: values[:, kept] for phase, values in steps.phases.items()},
        stands_for=None if steps.stands_for is None else steps.stands_for[kept],
        durations=None
        if steps.durations is None
        else replace(steps.durations, counts=steps.durations.counts[:, kept]),
        notes=(*steps.notes, *told),
        **matrices,
    )


def _cut_trace(trace: OperationTrace, numbers: NDArray[np.int64]) -> OperationTrace:
    rows = np.isin(trace.step, numbers)
    return replace(trace, **{name: getattr(trace, name)[rows] for name in _BY_ROW})
