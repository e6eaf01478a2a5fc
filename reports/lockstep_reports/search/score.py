"""Scores every rank at every step: own work, lateness, and what its lateness cost the job.

A rank that comes late waits least, so the shortest synchronisation names it. Its cost is what the
job would have gained had it come as early as the second-latest. No clock is compared (TraceLens
and DDP's logger use the same sign; tools that take the longest collective name the victims).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.recording.account import (
    HELD,
    PLANNED_PHASES,
    USUAL_QUANTILE,
    Account,
    divide,
    total_of,
)
from lockstep_reports.recording.steps import Steps

# What a step must lose to count, as a share of the median step.
MIN_EFFECT_RATIO = 0.05
# Of what a rank waits for cores. In five of 51 healthy runs, whose ranks waited so in 15 to 69 % of
# the time, one rank lost up to 9 % of these waits by its own work, and in one 22 %.
_MAX_LOST_BESIDE = 0.1
# A rank that writes a checkpoint for the whole job is late on purpose: planned work that makes up
# half of the margin or more is the reason, and the step says nothing about the rank.
_PLANNED_SHARE = 0.5
# Share of the lateness that a phase must exceed the others' by, to be named for it.
_MIN_PHASE_SHARE = 0.25


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scores:
    """The figures that verdicts rest on.

    Attributes:
        account: owners of the time that is judged.
        own_work: own work of all phases, with waits for a core, which nobody knows from work that
            cold caches make longer: seconds, [ranks, steps].
        waits: for other ranks: seconds, [ranks, steps]; NaN where they compare with none.
        unheld_waits: the same as if no rank had been stopped or had collected garbage, which then
            waits so much longer.
        rank_margin: by how much each rank itself kept all others waiting: the shortest unheld wait
            of the others minus its longest: seconds, [ranks, steps]; NaN where either is unknown,
            or where planned work explains the lateness.
        node_margin: the same of each node, in the order of ``Steps.nodes``: [nodes, steps]; None on
            one node.
        last_share: share of the steps in which the rank came last [ranks].
        step_seconds: duration of each step, median over the ranks: seconds, [steps].
        job_seconds: how long each step took the job: that of the slowest rank where times are
            the ranks' own, else ``step_seconds``: seconds, [steps].
    """

    account: Account
    own_work: Matrix
    waits: Matrix
    unheld_waits: Matrix
    rank_margin: Matrix
    node_margin: Matrix | None
    last_share: Matrix
    step_seconds: Matrix
    job_seconds: Matrix

    @property
    def median_step_seconds(self) -> float:
        """Median duration of a step."""
        return float(nan_stats.median(self.step_seconds))

    @property
    def lateness(self) -> Matrix:
        """Longest wait of all ranks minus the own one: seconds, [ranks, steps]."""
        return nan_stats.highest(self.waits, axis=0) - self.waits

    @property
    def is_crowded(self) -> bool:
        """Whether waits for a core make up a share of the run in which they may hide who is slow.

        Nobody knows then into which phase a wait fell, and who takes cores takes caches too.
        """
        return self.account.queued_ratio >= MIN_EFFECT_RATIO

    @property
    def tolerated_loss_seconds(self) -> float:
        """What a healthy rank may lose by its own work where other processes take its cores."""
        queued = 0.0 if self.account.queued is None else float(np.nansum(self.account.queued))
        return _MAX_LOST_BESIDE * queued / len(self.waits)

    @property
    def threshold(self) -> float:
        """Margin in seconds over which a rank is late in a step."""
        return MIN_EFFECT_RATIO * self.median_step_seconds


def score(steps: Steps, *, own_times: bool = False) -> Scores:
    """Scores all ranks and nodes of an attempt; ``own_times`` as in ``Recording``."""
    account, planned = divide(steps), _planned(steps)
    is_known = is_wait_known(steps, account)
    waits = account.waited if is_known.all() else np.where(is_known, account.waited, np.nan)
    step_seconds = nan_stats.median(steps.seconds, axis=0)
    held = [account.host[name] for name in HELD if name in account.host]
    unheld = total_of([waits, *held]) if held else waits
    queued = [account.host["queued"]] if "queued" in account.host else []
    margin = _margin(unheld, unheld, planned)
    return Scores(
        account=account,
        own_work=total_of([*account.own.values(), *queued]),
        waits=waits,
        unheld_waits=unheld,
        rank_margin=margin,
        node_margin=_margin_of_nodes(steps, unheld, planned),
        last_share=last_share(margin),
        step_seconds=step_seconds,
        job_seconds=nan_stats.highest(steps.seconds, axis=0) if own_times else step_seconds,
    )


def last_share(margin: Matrix) -> Matrix:
    """Share of the steps in which each unit came after all others [units].

    Args:
        margin: by how much it did: seconds, [units, steps]; NaN where unknown.
    """
    return nan_stats.mean(np.where(np.isnan(margin), np.nan, margin > 0), axis=1)


def excess(values: Matrix, rows: list[int]) -> Matrix:
    """Mean of some rows [ranks, steps] beyond the median of the other rows [steps]."""
    others = np.delete(values, rows, axis=0)
    beyond: Matrix = nan_stats.mean(values[rows], axis=0) - nan_stats.median(others, axis=0)
    return beyond


def slow_phase(
    phases: Mapping[str, Matrix],
    rows: list[int],
    columns: slice | Integers,
    late_seconds: float,
) -> tuple[str | None, float | None]:
    """The phase of some rows that is most beyond the others', and by how many seconds a step.

    It must explain a share of the median lateness, else both are None.
    """
    # Medians, so that a single pause in another phase does not outweigh what is steady.
    beyond = {
        name: float(nan_stats.median(excess(values[:, columns], rows)))
        for name, values in phases.items()
    }
    phase = max(beyond, key=lambda name: np.nan_to_num(beyond[name], nan=-np.inf))
    if not beyond[phase] >= _MIN_PHASE_SHARE * late_seconds:
        return None, None
    return phase, beyond[phase]


def _margin_of_nodes(steps: Steps, waits: Matrix, planned: Matrix) -> Matrix | None:
    if len(steps.nodes) <= 1:
        return None
    members = list(steps.rows_by_node.values())
    return _margin(
        np.array([nan_stats.lowest(waits[rows], axis=0) for rows in members]),
        np.array([nan_stats.highest(waits[rows], axis=0) for rows in members]),
        np.array([nan_stats.highest(planned[rows], axis=0) for rows in members]),
    )


def _margin(shortest: Matrix, longest: Matrix, planned: Matrix) -> Matrix:
    """Margin of units whose ranks wait for ``shortest`` to ``longest`` seconds.

    All three are seconds, [units, steps].
    """
    others = smallest_of_others(np.where(np.isnan(shortest), np.inf, shortest))
    margin = np.where(np.isinf(others) | np.isnan(shortest), np.nan, others) - longest
    is_planned = (margin > 0) & (planned >= _PLANNED_SHARE * margin)
    return np.where(is_planned, np.nan, margin)


def smallest_of_others(values: Matrix) -> Matrix:
    """For each unit the smallest value of all others in that step [units, steps].

    Args:
        values: [units, steps], infinite where unknown, as results are where no other is known.
    """
    if len(values) <= 1:
        return np.full_like(values, np.inf)
    lowest = np.argmin(values, axis=0)
    first, second = np.partition(values, 1, axis=0)[:2].copy()
    others: Matrix = np.where(np.arange(len(values))[:, None] == lowest, second, first)
    return others


def is_wait_known(steps: Steps, account: Account) -> Flags:
    """Where waits of a rank compare with those of others [ranks, steps].

    Where no collective was recorded, they do as far as another rank's work explains them.
    """
    took_part = ~np.isnan(steps.sync)
    is_hidden = ~took_part.any(axis=0) & (account.waited > 0).any(axis=0)
    is_known: Flags = took_part | (is_hidden & ~np.isnan(steps.seconds))
    return is_known


def _planned(steps: Steps) -> Matrix:
    """Checkpoint and evaluation beyond the rank that had least of them: seconds, [ranks, steps]."""
    own = np.sum([np.nan_to_num(steps.phases[phase]) for phase in PLANNED_PHASES], axis=0)
    beyond: Matrix = own - own.min(axis=0, initial=np.inf)
    # A loop may write its checkpoint in the step that it delays, or after the last collective of
    # the step before.
    before = np.pad(beyond, ((0, 0), (1, 0)))[:, :-1]
    return np.maximum(beyond, before)


# Share of a rank's steps; of fewer that are left nobody knows what is usual.
MOST_SLOW = 0.9
# Independence is a property of the noise, and this many rows estimate it well enough.
_MAX_SAMPLED_ROWS = 1024


def beyond_usual(own_work: Matrix, slow: Flags | None = None) -> Matrix:
    """Own work beyond what is usual for the rank: seconds, [ranks, steps].

    Args:
        own_work: seconds, [ranks, steps].
        slow: cells that are not usual [ranks, steps]; a rank with few others counts whole.
    """
    if slow is not None:
        is_long = slow.mean(axis=1, keepdims=True) > MOST_SLOW
        usual_work = np.where(slow & ~is_long, np.nan, own_work)
    else:
        usual_work = own_work
    usual = nan_stats.quantile(usual_work, USUAL_QUANTILE, axis=1)
    beyond: Matrix = own_work - usual[:, None]
    return beyond


def sample_rows(values: Matrix) -> Matrix:
    """Every n-th row of [rows, steps], at most ``_MAX_SAMPLED_ROWS`` of them."""
    return values[:: 1 + len(values) // _MAX_SAMPLED_ROWS]
