"""Effective training time: goodput of jobs and clusters, and what a checkpoint interval is worth.

ETTR = productive time / wall clock over all runs of one job (Kokolis et al., arXiv 2410.21680).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lockstep_catalogue.vocabulary import GOODPUT_STATES, GoodputState

HOUR_SECONDS = 3600.0
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class JobGoodput:
    """Allocated GPU time of a job by state.

    Attributes:
        gpu_seconds: by state; states that are absent are 0.
    """

    gpu_seconds: Mapping[GoodputState, float]

    @property
    def allocated_gpu_seconds(self) -> float:
        """All states together."""
        return math.fsum(self.gpu_seconds.values())

    @property
    def productive_ratio(self) -> float | None:
        """Share of the allocated time that trained; None without any."""
        allocated = self.allocated_gpu_seconds
        return self.gpu_seconds.get("productive", 0.0) / allocated if allocated else None

    @property
    def ettr_ratio(self) -> float | None:
        """Share of the allocated time that made progress, slow steps included; None without any.

        Communication, waits for data, stragglers and the host, and evaluation are parts of steps
        that are kept; start-up, checkpoints, restores, rework, hangs, recovery and idle time are
        not.
        """
        allocated = self.allocated_gpu_seconds
        moving = math.fsum(self.gpu_seconds.get(state, 0.0) for state in PROGRESS_STATES)
        return moving / allocated if allocated else None


PROGRESS_STATES: tuple[GoodputState, ...] = (
    "productive",
    "data_wait",
    "communication",
    "straggler_wait",
    "host_bound",
    "evaluation",
    "other",
)
"""States in which a job moves on: the R of Meta's ETTR, which counts slow steps as training."""


def sum_goodput(jobs: Sequence[JobGoodput]) -> JobGoodput:
    """Goodput of a cluster, weighted by GPU time."""
    return JobGoodput(
        gpu_seconds={
            state: math.fsum(job.gpu_seconds.get(state, 0.0) for job in jobs)
            for state in GOODPUT_STATES
        }
    )


def job_weighted_ratio(jobs: Iterable[JobGoodput]) -> float | None:
    """Mean of the jobs' productive ratios; None without a job."""
    ratios = [ratio for job in jobs if (ratio := job.productive_ratio) is not None]
    return math.fsum(ratios) / len(ratios) if ratios else None


@dataclass(frozen=True, slots=True)
class GoodputSample:
    """Totals of a job at a moment: seconds since 1970, GPU time that trained, all GPU time."""

    time: float
    productive: float
    allocated: float


def recent_ettr(
    samples: Sequence[GoodputSample], window_seconds: float = HOUR_SECONDS
) -> float | None:
    """ETTR of the last hour, which shows an incident that the cumulative one hides.

    The totals at the begin of the window lie between two samples and are interpolated; a job that
    is younger than the window is judged from its begin. None where nothing was allocated in it.
    """
    if not samples:
        return None
    newest = samples[-1]
    begin = newest.time - window_seconds
    before = [sample for sample in samples if sample.time <= begin]
    after = next((sample for sample in samples if sample.time > begin), newest)
    if before:
        oldest, span = before[-1], after.time - before[-1].time
        share = (begin - oldest.time) / span if span > 0 else 0.0
        productive = oldest.productive + share * (after.productive - oldest.productive)
        allocated = oldest.allocated + share * (after.allocated - oldest.allocated)
    else:
        productive = allocated = 0.0
    spent = newest.allocated - allocated
    return (newest.productive - productive) / spent if spent > 0 else None


def failures_per_node_day(num_failures: float, node_seconds: float) -> float | None:
    """Measured rate of failures; None without any observed time."""
    return num_failures * _DAY_SECONDS / node_seconds if node_seconds > 0 else None


def expected_ettr(
    *,
    num_nodes: float,
    failures_per_node_day: float,
    restart_seconds: float,
    interval_seconds: float,
    save_seconds: float,
) -> float:
    """ETTR that a job can expect, from 0 to 1, without the time in the queue.

    E[ETTR] = (1 - N r (u + dt / 2)) / (1 + w / dt): a failure costs the restart and half a
    checkpoint interval, and a checkpoint stops training for its blocking write. The first-order
    form of the paper: it holds while N r (u + dt / 2) is well below 1.

    Args:
        num_nodes: N.
        failures_per_node_day: r.
        restart_seconds: u, from the failure to the first step again.
        interval_seconds: dt, training between two checkpoints.
        save_seconds: w, for which a checkpoint stops the steps.
    """
    rate = num_nodes * failures_per_node_day / _DAY_SECONDS
    lost_ratio = rate * (restart_seconds + interval_seconds / 2)
    return max(0.0, 1 - lost_ratio) / (1 + save_seconds / interval_seconds)


def best_interval_seconds(
    *, num_nodes: float, failures_per_node_day: float, save_seconds: float
) -> float | None:
    """The checkpoint interval with the highest expected ETTR: sqrt(2 w / (N r)) (Young, Daly).

    None when nothing fails or a save costs nothing: no optimum exists then.
    """
    rate = num_nodes * failures_per_node_day / _DAY_SECONDS
    return math.sqrt(2 * save_seconds / rate) if rate > 0 and save_seconds > 0 else None
