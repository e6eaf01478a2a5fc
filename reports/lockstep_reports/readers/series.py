"""Builds recordings whose source knows durations of steps and little else."""

import numpy as np

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.recording.steps import Member, Steps

MAX_CELLS = 1 << 25
"""Most cells [ranks, steps] that a reader makes: 256 MiB a matrix."""


def timed_steps(
    name: str,
    ranks: list[int],
    numbers: Integers,
    seconds: Matrix,
    *,
    sync: Matrix | None = None,
    world_size: int | None = None,
    notes: tuple[str, ...] = (),
) -> Steps:
    """Steps of which only durations, and perhaps synchronisation, are known.

    Args:
        name: of the job.
        ranks: global ranks, the rows.
        numbers: step numbers [steps].
        seconds: duration of each step: seconds, [ranks, steps]; NaN where unknown.
        sync: exposed synchronisation, in the same way; None for zero.
        world_size: None for the highest rank and one more.
        notes: sentences for the reader about what is missing.
    """
    phases = {phase: np.where(np.isnan(seconds), np.nan, 0.0) for phase in STEP_PHASES}
    if sync is not None:
        phases["sync"] = sync
    return Steps(
        job_id=name,
        attempt=0,
        world_size=world_size or max(ranks, default=0) + 1,
        members=tuple(Member(rank=rank) for rank in ranks),
        numbers=numbers,
        seconds=seconds,
        phases=phases,
        notes=notes,
    )
