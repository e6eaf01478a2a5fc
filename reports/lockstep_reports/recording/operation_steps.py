"""The steps of an operation trace: own work by phase, and the rest of the step as waiting."""

import numpy as np

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_reports.arrays import Integers, Matrix, Seconds
from lockstep_reports.recording.operations import (
    BACKWARD,
    FORWARD,
    GARBAGE,
    OPTIMIZER,
    OperationTrace,
)
from lockstep_reports.recording.steps import Member, Steps

# A step that lasts so many median steps longer than its busiest rank worked has a wrong time: a
# clock jumped in it, or an operation was written with an impossible start.
IDLE_STEPS = 2.0
_PHASE_OF = {FORWARD: "forward", BACKWARD: "backward", OPTIMIZER: "optimizer", GARBAGE: "other"}


def steps_of(trace: OperationTrace) -> Steps:
    """The steps of a trace; a step lasts from its first start to its last end on any rank.

    Wall clock and losses are not recorded there and stay unknown (NaN); so does the duration of a
    step whose times cannot be true.
    """
    ranks, row = np.unique(trace.rank, return_inverse=True)
    numbers, column = np.unique(trace.step, return_inverse=True)
    shape = (len(ranks), len(numbers))
    cell = row * shape[1] + column
    is_recorded = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape) > 0
    step_seconds = _step_seconds(trace, column, len(numbers))
    busiest = _sums(trace.duration, cell, shape).max(axis=0)
    is_impossible = step_seconds > busiest + IDLE_STEPS * np.median(step_seconds)
    possible_seconds = np.where(is_impossible, np.nan, step_seconds)
    seconds = np.where(is_recorded, np.broadcast_to(possible_seconds, shape), np.nan)
    phases = {phase: np.where(is_recorded, 0.0, np.nan) for phase in STEP_PHASES}
    for name, phase in _PHASE_OF.items():
        if name in trace.types:
            rows = trace.type_of == trace.types.index(name)
            phases[phase] += _sums(trace.duration[rows], cell[rows], shape)
    own = np.sum([phases[phase] for phase in set(_PHASE_OF.values())], axis=0)
    phases["sync"] = np.maximum(seconds - own, 0.0)
    unknown = np.full(shape, np.nan)
    return Steps(
        job_id=trace.name,
        attempt=0,
        world_size=max(trace.layout.world_size, len(ranks)),
        members=tuple(Member(rank=rank, node=trace.nodes.get(rank, "")) for rank in ranks.tolist()),
        numbers=numbers,
        seconds=seconds,
        phases=phases,
        start=unknown,
        first_arrival=unknown,
        last_arrival=unknown,
        loss=unknown,
        notes=trace.notes,
    )


def _step_seconds(trace: OperationTrace, column: Integers, count: int) -> Matrix:
    """From the first start to the last end on any rank: seconds, [steps].

    Args:
        trace: the rows.
        column: index of the step of each row [rows].
        count: number of steps.
    """
    first, last = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(first, column, trace.start)
    np.maximum.at(last, column, trace.end)
    seconds: Matrix = last - first
    return seconds


def _sums(values: Seconds, cell: Integers, shape: tuple[int, int]) -> Matrix:
    """Sums of row values [rows] by cell of the matrix [ranks, steps]."""
    total = np.bincount(cell, weights=values, minlength=shape[0] * shape[1])
    return total.astype(np.float64).reshape(shape)
