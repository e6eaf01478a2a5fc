"""What ``lockstep top`` shows of the ranks of a job at one moment: one frozen line a rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lockstep_catalogue.vocabulary import ENDED_PHASES, PAUSE_PHASES
from lockstep_records.hangs import hang_limit_seconds
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Matrix


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRow:
    """One rank now; None where unknown.

    Attributes:
        state: training, another phase outside of steps, stalled, done or failed.
        lag_seconds: own work a step beyond the median of its job.
        wait_seconds: synchronisation a step, from own arrival to completion.
        quiet_seconds: since its last mark.
        step_times: durations of the newest steps, oldest first, in seconds.
    """

    job_id: str
    rank: int
    node: str
    state: str
    phase: str | None
    step: int | None
    lag_seconds: float | None
    wait_seconds: float | None
    step_seconds: float | None
    tokens_per_second: float | None
    loss: float | None
    quiet_seconds: float | None
    step_times: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """All ranks at one moment, worst first.

    Attributes:
        at: wall clock in seconds.
        notes: what could not be read.
    """

    title: str
    at: float
    rows: tuple[RankRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def tokens_per_second(self) -> float | None:
        """Of all ranks together."""
        told = [row.tokens_per_second for row in self.rows if row.tokens_per_second is not None]
        return sum(told) if told else None

    @property
    def step_seconds(self) -> float | None:
        """Median over the ranks."""
        told = np.array([row.step_seconds for row in self.rows if row.step_seconds is not None])
        return nan_stats.number(nan_stats.median(told))


class Source(Protocol):
    """Where looks come from."""

    def look(self) -> Look:
        """The ranks now.

        Raises:
            ValueError: there is nothing to look at; the text says why.
        """

    def close(self) -> None:
        """Lets go of connections."""


def worst_first(rows: Sequence[RankRow]) -> tuple[RankRow, ...]:
    """Failed and stalled ranks that do not wait for others, then by lag."""
    urgent = {"failed": 0, "stalled": 1}

    def key(row: RankRow) -> tuple[int, bool, float, str, int]:
        at = urgent.get(row.state, 2)
        lag = row.lag_seconds if row.lag_seconds is not None else -np.inf
        return at, row.phase == "sync", -lag, row.job_id, row.rank

    return tuple(sorted(rows, key=key))


def lags(own_work: Matrix) -> Matrix:
    """Own work [ranks x steps] of each rank beyond the median of all, median over steps [ranks]."""
    return nan_stats.median(own_work - nan_stats.median(own_work, axis=0), axis=1)


def state_of(phase: str, quiet_seconds: float, step_seconds: float | None) -> str:
    """What a rank is doing, seen from outside."""
    if phase in ENDED_PHASES:
        return phase
    is_pause = phase in PAUSE_PHASES
    if quiet_seconds > hang_limit_seconds(step_seconds, is_pause=is_pause):
        return "stalled"
    return phase if is_pause else "training"
