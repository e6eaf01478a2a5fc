"""Puts the arrivals of ranks of different nodes on one clock, taken from the collectives.

All ranks leave a synchronisation together. Where one node seems to leave it later than the others
in step after step, its clock is ahead by that amount. Verdicts do not depend on this, because
lateness is computed without clocks; the arrival times in tables and figures do.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from lockstep_records.text.durations import parse_time
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Matrix
from lockstep_reports.recording.operations import OperationTrace
from lockstep_reports.recording.recording import CollectiveLog, Recording
from lockstep_reports.recording.steps import Steps

# Below these a median of a third is as noisy as the drift that it is to show: crystal clocks drift
# by tens of microseconds a second at most.
_MIN_STEPS_A_THIRD, _MIN_SECONDS = 30, 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Clocks:
    """Offsets of the clocks that were corrected, and the error that is left.

    Attributes:
        offsets: seconds by which a clock is ahead of the ranks' median, by node or rank.
        drifts: seconds that it gains per second, in the same way; null where the recording is too
            short to measure it.
        residual_seconds: how far apart the ranks still leave a synchronisation, median over the
            steps; null when no step has two ranks with known ends.
        residual_p95_seconds: the same, 95th percentile.
    """

    offsets: Mapping[str, float]
    drifts: Mapping[str, float | None]
    residual_seconds: float | None
    residual_p95_seconds: float | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Alignment(Clocks):
    """Arrivals on one clock, and how well the clocks agree afterwards.

    Attributes:
        start: begin of each step on the common clock: seconds since the epoch, [ranks, steps].
        last_arrival: last arrival on the common clock: seconds since the epoch, [ranks, steps].
    """

    start: Matrix
    last_arrival: Matrix

    @property
    def lag(self) -> Matrix:
        """How long after the earliest rank each one arrived: seconds, [ranks, steps]."""
        return self.last_arrival - nan_stats.lowest(self.last_arrival, axis=0)


def align(steps: Steps) -> Alignment:
    """Removes one clock offset and one drift per node; ranks of a node share a clock."""
    end = steps.last_arrival + steps.sync
    median_end = nan_stats.median(end, axis=0)
    ahead = end - median_end
    offsets, drifts, shift = {}, {}, np.zeros((len(steps.members), 1))
    has_nodes = len(steps.nodes) > 1
    for node, rows in steps.rows_by_node.items() if has_nodes else ():
        node_ahead = nan_stats.median(ahead[rows], axis=0)
        drifts[node] = drift_of(median_end, node_ahead)
        offsets[node] = nan_stats.median_number(node_ahead) or 0.0
        shift[rows] = offsets[node]
    if any(drifts.values()):
        since_median_time = np.nan_to_num(median_end - nan_stats.median(median_end))
        rates = np.array([drifts[member.node] or 0.0 for member in steps.members])
        shift = shift + rates[:, None] * since_median_time
    spread = nan_stats.highest(end - shift, axis=0) - nan_stats.lowest(end - shift, axis=0)
    return Alignment(
        offsets=offsets if has_nodes else dict.fromkeys(steps.nodes, 0.0),
        drifts=drifts if has_nodes else dict.fromkeys(steps.nodes),
        residual_seconds=nan_stats.median_number(spread),
        residual_p95_seconds=nan_stats.quantile_number(spread, 0.95),
        start=steps.start - shift,
        last_arrival=steps.last_arrival - shift,
    )


def drift_of(time: Matrix, ahead: Matrix) -> float | None:
    """Seconds that a clock gains per second; 0 where noise explains the gain; None if too short.

    Times of collectives are ascending, and by how much the clock is ahead there [collectives].
    """
    third = len(time) // 3
    if third < _MIN_STEPS_A_THIRD:
        return None
    first, last = ahead[:third], ahead[-third:]
    between = nan_stats.number(nan_stats.median(time[-third:]) - nan_stats.median(time[:third]))
    gained = nan_stats.number(nan_stats.median(last) - nan_stats.median(first))
    if between is None or gained is None or between < _MIN_SECONDS:
        return None
    # Null hypothesis: the clock keeps its distance, and the medians of the thirds differ by noise
    # alone. Assumed of the noise: independent from step to step, of any shape. From one median
    # deviation on a gain counts: with 30 normal values a third that happens by chance in one case
    # of 25, and a drift taken for real by mistake is as small as the noise and changes no verdict.
    noise = max(float(nan_stats.median(np.abs(x - nan_stats.median(x)))) for x in (first, last))
    return gained / between if abs(gained) > noise else 0.0


def align_by_collectives(alignment: Alignment, log: CollectiveLog) -> Alignment:
    """The alignment with the clocks of the collectives, by rank."""
    return replace(
        alignment,
        offsets={f"rank {rank}": seconds for rank, seconds in log.offsets.items()},
        drifts={f"rank {rank}": rate for rank, rate in log.drifts.items()},
        residual_seconds=nan_stats.median_number(log.residual) if log.items else None,
        residual_p95_seconds=nan_stats.quantile_number(log.residual, 0.95) if log.items else None,
    )


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
    has_collectives = recording.flight_recorder_log is not None or recording.collectives is not None
    if not len(steps.numbers) or has_collectives:
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
        counts = f"{len(part.numbers):,} of {len(steps.numbers):,} recorded steps"
        part = replace(part, notes=(*steps.notes, f"Only {counts} are looked at."))
    return replace(recording, steps=part, operations=trace)


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
