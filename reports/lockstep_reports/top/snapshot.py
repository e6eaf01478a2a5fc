"""The ranks of a job at one moment, as ``lockstep top`` shows them: one frozen row per rank."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lockstep_catalogue.limits import MAX_OTHER_RATIO, MIN_WAIT_RATIO
from lockstep_catalogue.vocabulary import ENDED_PHASES, PAUSE_PHASES
from lockstep_outcomes.progress.hangs import (
    HANG_TIMEOUT_SECONDS,
    PAUSE_TIMEOUT_SECONDS,
    HangTimeouts,
    hang_limit_seconds,
)
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Matrix
from lockstep_reports.wording import percent


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRow:
    """One rank at the moment of the snapshot; None where unknown.

    Attributes:
        state: training, another phase outside of steps, stopped (by a signal), stalled, gone, done
            or failed.
        lag_seconds: own work per step beyond the median of its job.
        wait_seconds: synchronisation per step, from own arrival to completion.
        quiet_seconds: time since its last progress.
        other_seconds: time per step in no marked phase.
        step_times: durations of the newest steps, oldest first, in seconds.
        clock: whose clock these times are by; lags are those among ranks with the same one.
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
    other_seconds: float | None = None
    step_times: tuple[float, ...] = ()
    clock: str = "host"


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """All ranks at one moment, worst first.

    Attributes:
        wall_seconds: wall clock.
        state: of the job, as ``lockstep jobs`` says it; empty where several are shown.
    """

    title: str
    wall_seconds: float
    rows: tuple[RankRow, ...]
    notes: tuple[str, ...] = ()
    state: str = ""

    @property
    def clocks(self) -> tuple[str, ...]:
        """Clocks that the times of ranks are by."""
        return tuple(sorted({row.clock for row in self.rows}))

    @property
    def tokens_per_second(self) -> float | None:
        """Sum over the ranks; None where no rank counts tokens."""
        rates = [row.tokens_per_second for row in self.rows if row.tokens_per_second is not None]
        return sum(rates) if rates else None

    @property
    def step_seconds(self) -> float | None:
        """Median over the ranks; None where no duration is known."""
        seconds = np.array([row.step_seconds for row in self.rows if row.step_seconds is not None])
        return nan_stats.median_number(seconds)


class SnapshotSource(Protocol):
    """Gives one snapshot after another."""

    def poll(self) -> Snapshot:
        """The ranks now.

        Raises:
            ValueError: no rank can be shown; the text says why.
        """

    def close(self) -> None:
        """Closes connections."""


def worst_first(rows: Sequence[RankRow]) -> tuple[RankRow, ...]:
    """Failed, gone and stalled ranks that do not wait for others, then by lag."""
    priorities = {"failed": 0, "gone": 0, "stopped": 0, "stalled": 1}

    def order(row: RankRow) -> tuple[int, bool, float, str, int]:
        priority = priorities.get(row.state, 2)
        lag = row.lag_seconds if row.lag_seconds is not None else -np.inf
        # In a stalled job the ranks inside a collective wait for the one outside: it comes first.
        return priority, row.phase == "sync", -lag, row.job_id, row.rank

    return tuple(sorted(rows, key=order))


def lags(own_work: Matrix) -> Matrix:
    """Median over the steps of each rank's own work beyond the median of all ranks.

    Args:
        own_work: seconds, [ranks, steps]; NaN where unknown.

    Returns:
        Seconds, [ranks].
    """
    # By own work and not by step time, which is the same on all ranks of a synchronous job.
    return nan_stats.median(own_work - nan_stats.median(own_work, axis=0), axis=1)


STILL = frozenset({"failed", "gone", "stopped", "stalled", "done"})
"""States in which a rank computes nothing: it has no rate."""


def state_of(
    phase: str,
    quiet_seconds: float,
    step_seconds: float | None,
    timeouts: HangTimeouts = HangTimeouts(),  # noqa: B008  # it is frozen
) -> str:
    """State of a rank by its last phase, its silence, and the median of its steps if known."""
    if phase in ENDED_PHASES:
        return phase
    is_pause = phase in PAUSE_PHASES
    limit_seconds = hang_limit_seconds(
        step_seconds,
        timeouts.step_seconds or HANG_TIMEOUT_SECONDS,
        timeouts.pause_seconds or PAUSE_TIMEOUT_SECONDS,
        is_pause=is_pause,
    )
    if quiet_seconds > limit_seconds:
        return "stalled"
    return phase if is_pause else "training"


def why_unobserved(rows: Sequence[RankRow]) -> tuple[str, ...]:
    """A sentence for each job of which a slow rank would not show, by its reason."""
    by_job: dict[str, list[RankRow]] = {}
    for row in rows:
        by_job.setdefault(row.job_id, []).append(row)
    notes = [_why_unobserved(job, ranks) for job, ranks in by_job.items()]
    return tuple(note for note in notes if note is not None)


def _why_unobserved(job_id: str, rows: Sequence[RankRow]) -> str | None:
    waits = _ratios((row.wait_seconds, row.step_seconds) for row in rows)
    if len(waits) > 1 and max(waits) < MIN_WAIT_RATIO:
        return f"Who is slow is unknown in {job_id}: no rank waits, so waits are not recorded."
    other = _ratios((row.other_seconds, row.step_seconds) for row in rows)
    if len(other) > 1 and np.median(other) > MAX_OTHER_RATIO:
        return (
            f"Who is slow is unknown in {job_id}: {percent(float(np.median(other)))} of the step "
            "is in no marked phase."
        )
    return None


def _ratios(pairs: Iterable[tuple[float | None, float | None]]) -> list[float]:
    return [part / step for part, step in pairs if part is not None and step]
