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

LEAST_SECONDS = 2e-3
# A clock has jumped where it is off by so many times what it usually varies by, and by so much.
_JUMP_SIGMAS, _JUMP_SECONDS = 8.0, 1e-2


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Clocks:
    """How far the clocks were apart.

    Attributes:
        offset_seconds: by how much each rank's clock was ahead and was set back, zero where it
            was left alone [stages x shards x replicas].
        residual_seconds: how far apart ranks still leave a collective, median; None when no
            collective could tell.
        residual_p95_seconds: the same, 95th percentile.
    """

    offset_seconds: Matrix
    residual_seconds: float | None
    residual_p95_seconds: float | None


def align_clocks(grid: Grid, least_seconds: float = LEAST_SECONDS) -> tuple[Grid, Clocks]:
    """The grid on one clock. Clocks that differ by less than told are left as they are.

    Clipping joins all ranks; where none is recorded, only the replicas of a stage are aligned.
    Where a clock jumps, it is set back by as much; steps that still cannot be true are left out.

    Raises:
        NoReplayError: no step is left.
    """
    offset = np.zeros(grid.rank.shape)
    ops, together = _leaving_together(grid)
    if not len(ops):
        clocks = Clocks(offset_seconds=offset, residual_seconds=None, residual_p95_seconds=None)
        return _possible_steps(grid), clocks
    end = grid.end[ops].astype(np.float64)
    groups = [np.flatnonzero(together == number) for number in np.unique(together)]
    middle = np.empty_like(end)
    for group in groups:
        middle[group] = np.median(end[group], axis=(0, 1))
    apart = np.median(end - middle, axis=2)
    worker = grid.stage[ops], grid.shard[ops]
    count = np.zeros(grid.rank.shape[:2])
    np.add.at(count, worker, 1)
    np.add.at(offset, worker, apart)
    offset /= np.maximum(count, 1)[:, :, None]
    offset[np.abs(offset) < least_seconds] = 0
    aligned, jump = grid, _jumps(grid, ops, end - middle)
    if offset.any() or jump.any():
        ahead = offset[..., None] + jump
        start = grid.start - ahead[grid.stage, grid.shard]
        aligned = replace(grid, start=start - start.min(axis=(0, 1)))
    left = aligned.end[ops].astype(np.float64)
    spread = np.array([np.ptp(left[group], axis=(0, 1)) for group in groups])
    return _possible_steps(aligned), Clocks(
        offset_seconds=offset,
        residual_seconds=float(np.median(spread)),
        residual_p95_seconds=float(np.quantile(spread, 0.95)),
    )


def _jumps(grid: Grid, ops: Integers, apart: Matrix) -> Matrix:
    """How far clocks stood from their usual offset in steps after a jump; zero in all others.

    Args:
        grid: all operations.
        ops: those that a group leaves together.
        apart: by how much each ends after the middle of its group [ops x replicas x steps].

    Returns:
        Seconds [stages x shards x replicas x steps].
    """
    off, count = np.zeros((*grid.rank.shape, apart.shape[2])), np.zeros(grid.rank.shape[:2])
    np.add.at(off, (grid.stage[ops], grid.shard[ops]), apart)
    np.add.at(count, (grid.stage[ops], grid.shard[ops]), 1)
    off /= np.maximum(count, 1)[:, :, None, None]
    off -= np.median(off, axis=3, keepdims=True)
    usual = np.median(np.abs(off), axis=3, keepdims=True)
    return np.where(np.abs(off) > np.maximum(_JUMP_SECONDS, _JUMP_SIGMAS * usual), off, 0.0)


def _possible_steps(grid: Grid) -> Grid:
    """The grid without the steps in which a time cannot be true: nobody worked for most of it.

    Raises:
        NoReplayError: no step is left.
    """
    busy = np.zeros((*grid.rank.shape, len(grid.steps)))
    np.add.at(busy, (grid.stage, grid.shard), grid.duration)
    lasted = grid.end.max(axis=(0, 1)) - grid.start.min(axis=(0, 1))
    kept = lasted <= busy.max(axis=(0, 1, 2)) + IDLE_STEPS * np.median(lasted)
    if kept.all():
        return grid
    if not kept.any():
        raise NoReplayError("the clocks of the ranks jump in every step")
    lost = plural(int(np.count_nonzero(~kept)), "step")
    return replace(
        grid,
        start=grid.start[:, :, kept],
        duration=grid.duration[:, :, kept],
        steps=grid.steps[kept],
        notes=(*grid.notes, f"{lost} with a time that cannot be true are not replayed."),
    )


def _leaving_together(grid: Grid) -> tuple[Integers, Integers]:
    """Operations that a group leaves together, and the number of the group of each."""
    clips = np.flatnonzero(grid.of_type(CLIP))
    if len(clips):
        return clips, grid.order[clips]
    ops = np.flatnonzero(grid.of_type(PARAMS_GATHER, GRADS_SCATTER, PARAMS_SYNC, GRADS_SYNC))
    keys = (grid.type_of[ops], grid.order[ops], grid.stage[ops], grid.shard[ops])
    _, together = np.unique(np.stack(keys), axis=1, return_inverse=True)
    return ops, together.reshape(-1)
