"""Puts all ranks of a trace on one clock, by the collectives that they leave together."""

from dataclasses import dataclass, replace

import numpy as np

from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.recording.operation_steps import IDLE_STEPS
from lockstep_reports.recording.operations import (
    CLIP,
    GRADS_SCATTER,
    GRADS_SYNC,
    PARAMS_GATHER,
    PARAMS_SYNC,
)
from lockstep_reports.whatif.grid import Grid, NoReplayError
from lockstep_reports.wording import plural

# Offsets below it are left as they are, so that traces with well-synchronised clocks, such as the
# published ones, are replayed exactly as they were recorded.
MIN_OFFSET_SECONDS = 2e-3
# A clock has jumped in a step where it is off by so many times its usual variation, and by so
# much at least: a clock that hardly varies must not be set for microseconds.
_JUMP_SIGMAS, _JUMP_SECONDS = 8.0, 1e-2


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Clocks:
    """How far the clocks were apart.

    Attributes:
        offset_seconds: by how much each rank's clock was ahead and is set back; zero where it
            stays: seconds, [stages, shards, replicas].
        residual_seconds: how far apart ranks still leave a collective, median; None without a
            collective that ranks leave together.
        residual_p95_seconds: the same, 95th percentile.
    """

    offset_seconds: Matrix
    residual_seconds: float | None
    residual_p95_seconds: float | None


def align_clocks(grid: Grid, min_offset_seconds: float = MIN_OFFSET_SECONDS) -> tuple[Grid, Clocks]:
    """The grid on one clock.

    Gradient clipping joins all ranks; where none is recorded, only the replicas of a stage are
    aligned. Where a clock jumps, it is set back; steps that still cannot be true are left out.

    Raises:
        NoReplayError: no step is left.
    """
    offset = np.zeros(grid.rank.shape)
    ops, group_of = _joint_ends(grid)
    if not len(ops):
        clocks = Clocks(offset_seconds=offset, residual_seconds=None, residual_p95_seconds=None)
        return _possible_steps(grid), clocks
    end = grid.end[ops].astype(np.float64)
    groups = [np.flatnonzero(group_of == number) for number in np.unique(group_of)]
    median_end = np.empty_like(end)
    for group in groups:
        median_end[group] = np.median(end[group], axis=(0, 1))
    ahead = np.median(end - median_end, axis=2)
    worker = grid.stage[ops], grid.shard[ops]
    count = np.zeros(grid.rank.shape[:2])
    np.add.at(count, worker, 1)
    np.add.at(offset, worker, ahead)
    offset /= np.maximum(count, 1)[:, :, None]
    offset[np.abs(offset) < min_offset_seconds] = 0
    aligned, jump = grid, _jumps(grid, ops, end - median_end)
    if offset.any() or jump.any():
        shift = offset[..., None] + jump
        start = grid.start - shift[grid.stage, grid.shard]
        aligned = replace(grid, start=start - start.min(axis=(0, 1)))
    aligned_end = aligned.end[ops].astype(np.float64)
    spread = np.array([np.ptp(aligned_end[group], axis=(0, 1)) for group in groups])
    return _possible_steps(aligned), Clocks(
        offset_seconds=offset,
        residual_seconds=float(np.median(spread)),
        residual_p95_seconds=float(np.quantile(spread, 0.95)),
    )


def _jumps(grid: Grid, ops: Integers, ahead: Matrix) -> Matrix:
    """How far clocks are from their usual offset in steps after a jump; zero in all others.

    Null hypothesis: a clock keeps its offset, and its estimates vary by noise. Nothing is assumed
    of the noise but that its median deviation shows its size; eight of these are over five
    standard deviations of normal noise.

    Args:
        grid: all operations.
        ops: those that a group leaves together.
        ahead: by how much each ends after the median of its group: seconds,
            [ops, replicas, steps].

    Returns:
        Seconds, [stages, shards, replicas, steps].
    """
    off, count = np.zeros((*grid.rank.shape, ahead.shape[2])), np.zeros(grid.rank.shape[:2])
    np.add.at(off, (grid.stage[ops], grid.shard[ops]), ahead)
    np.add.at(count, (grid.stage[ops], grid.shard[ops]), 1)
    off /= np.maximum(count, 1)[:, :, None, None]
    off -= np.median(off, axis=3, keepdims=True)
    usual = np.median(np.abs(off), axis=3, keepdims=True)
    return np.where(np.abs(off) > np.maximum(_JUMP_SECONDS, _JUMP_SIGMAS * usual), off, 0.0)


def _possible_steps(grid: Grid) -> Grid:
    """The grid without the steps whose times cannot be true: nobody worked for most of the step.

    Raises:
        NoReplayError: no step is left.
    """
    busy = np.zeros((*grid.rank.shape, len(grid.steps)))
    np.add.at(busy, (grid.stage, grid.shard), grid.duration)
    step_seconds = grid.end.max(axis=(0, 1)) - grid.start.min(axis=(0, 1))
    possible = step_seconds <= busy.max(axis=(0, 1, 2)) + IDLE_STEPS * np.median(step_seconds)
    if possible.all():
        return grid
    if not possible.any():
        raise NoReplayError("the clocks of the ranks jump in every step")
    lost = plural(int(np.count_nonzero(~possible)), "step")
    return replace(
        grid,
        start=grid.start[:, :, possible],
        duration=grid.duration[:, :, possible],
        steps=grid.steps[possible],
        notes=(*grid.notes, f"{lost} with a time that cannot be true are not replayed."),
    )


def _joint_ends(grid: Grid) -> tuple[Integers, Integers]:
    """Operations that all ranks of a group leave together, and the group of each [ops]."""
    clips = np.flatnonzero(grid.of_type(CLIP))
    if len(clips):
        return clips, grid.order[clips]
    ops = np.flatnonzero(grid.of_type(PARAMS_GATHER, GRADS_SCATTER, PARAMS_SYNC, GRADS_SYNC))
    keys = (grid.type_of[ops], grid.order[ops], grid.stage[ops], grid.shard[ops])
    _, group_of = np.unique(np.stack(keys), axis=1, return_inverse=True)
    return ops, group_of.reshape(-1)
