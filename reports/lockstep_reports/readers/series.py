"""What readers of plain step times share: a recording of ranks x steps with durations alone."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_reports.arrays import Matrix
from lockstep_reports.recording.recording import Attempt, Recording
from lockstep_reports.recording.steps import Member, Steps


def timed_steps(
    name: str,
    ranks: list[int],
    numbers: NDArray[np.int64],
    seconds: Matrix,
    *,
    sync: Matrix | None = None,
    world_size: int | None = None,
    notes: tuple[str, ...] = (),
) -> Steps:
    """Steps [ranks x steps] of which only durations, and perhaps synchronisation, are known."""
    unknown = np.full(seconds.shape, np.nan)
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
        start=unknown,
        first_arrival=unknown,
        last_arrival=unknown,
        loss=unknown,
        notes=notes,
    )


def of_times(kind: str, path: Path, steps: Steps) -> Recording:
    """The recording of a job whose ranks' times are their own."""
    return Recording(
        source_kind=kind,
        path=path,
        steps=steps,
        events=(),
        attempts=(Attempt(number=0, outcome=None),),
        own_times=True,
    )
