"""Puts all ranks of a trace on one clock, by the collectives that they leave together."""

from dataclasses import dataclass, replace

import numpy as np

from lockstep_reports.operations import (
    CLIP,
    GRADS_SCATTER,
    GRADS_SYNC,
    PARAMS_GATHER,
    PARAMS_SYNC,
    Integers,
)
from lockstep_reports.steps import Matrix
from lockstep_reports.whatif.grid import Grid

LEAST_SECONDS = 2e-3


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
    """
    offset = np.zeros(grid.rank.shape)
    ops, together = _leaving_together(grid)
    if not len(ops):
        return grid, Clocks(offset_seconds=offset, residual_seconds=None, residual_p95_seconds=None)
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
    aligned = grid
    if offset.any():
        start = grid.start - offset[grid.stage, grid.shard][:, :, None]
        aligned = replace(grid, start=start - start.min(axis=(0, 1)))
    left = aligned.end[ops].astype(np.float64)
    spread = np.array([np.ptp(left[group], axis=(0, 1)) for group in groups])
    return aligned, Clocks(
        offset_seconds=offset,
        residual_seconds=float(np.median(spread)),
        residual_p95_seconds=float(np.quantile(spread, 0.95)),
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
