"""Scores every rank at every step: own work, lateness, and what its lateness cost the job.

A rank that comes late waits least, so the shortest synchronisation names it. Its cost is what the
job would have gained had it come as early as the second-latest. No clock is compared.
"""

from dataclasses import dataclass

import numpy as np

from lockstep_catalogue.labels import OWN_WORK_PHASES, STEP_PHASES
from lockstep_catalogue.vocabulary import PAUSE_PHASES
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Matrix
from lockstep_reports.recording.steps import Steps

_PLANNED_PHASES = tuple(phase for phase in STEP_PHASES if phase in PAUSE_PHASES)
_PLANNED_SHARE = 0.5


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Waiting:
    """How much one unit, a rank or a node, keeps all others waiting [units x steps], in seconds.

    Attributes:
        margin: smallest synchronisation of the others minus the longest of the unit's own:
            positive when all of the unit came after all others; NaN where it cannot be told.
        cost: seconds that the job would have gained had the unit come with the next one.
    """

    margin: Matrix
    cost: Matrix


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scores:
    """What the judge looks at; matrices are [ranks x steps] in seconds.

    Attributes:
        own_work: data, forward, backward, optimizer and other together.
        lateness: longest synchronisation of all ranks minus the own one.
        ranks: waiting for each rank.
        nodes: waiting for each node, in the order of ``Steps.nodes``; None on one node.
        last_share: share of the steps in which the rank came last [ranks].
        step_seconds: duration of each step, median over the ranks [steps].
    """

    own_work: Matrix
    lateness: Matrix
    ranks: Waiting
    nodes: Waiting | None
    last_share: Matrix
    step_seconds: Matrix

    @property
    def median_step_seconds(self) -> float:
        """Median duration of a step."""
        return float(nan_stats.median(self.step_seconds))


def score(steps: Steps) -> Scores:
    """Scores all ranks and nodes of an attempt."""
    sync, planned = steps.sync, _planned(steps)
    ranks = _waiting(sync, sync, planned)
    return Scores(
        own_work=np.sum([steps.phases[phase] for phase in OWN_WORK_PHASES], axis=0),
        lateness=nan_stats.highest(sync, axis=0) - sync,
        ranks=ranks,
        nodes=_waiting_of_nodes(steps, sync, planned),
        last_share=last_share(ranks.margin),
        step_seconds=nan_stats.median(steps.seconds, axis=0),
    )


def last_share(margin: Matrix) -> Matrix:
    """Share of the steps in which each unit came after all others [units]."""
    return nan_stats.mean(np.where(np.isnan(margin), np.nan, margin > 0), axis=1)


def excess(values: Matrix, rows: list[int]) -> Matrix:
    """Mean of some ranks' values beyond the median of the other ranks [steps]."""
    others = np.delete(values, rows, axis=0)
    beyond: Matrix = nan_stats.mean(values[rows], axis=0) - nan_stats.median(others, axis=0)
    return beyond


def _waiting_of_nodes(steps: Steps, sync: Matrix, planned: Matrix) -> Waiting | None:
    if len(steps.nodes) <= 1:
        return None
    members = [steps.on_node(node) for node in steps.nodes]
    return _waiting(
        np.array([nan_stats.lowest(sync[rows], axis=0) for rows in members]),
        np.array([nan_stats.highest(sync[rows], axis=0) for rows in members]),
        np.array([nan_stats.highest(planned[rows], axis=0) for rows in members]),
    )


def _waiting(shortest: Matrix, longest: Matrix, planned: Matrix) -> Waiting:
    """Waiting for units whose ranks synchronise between ``shortest`` and ``longest`` seconds."""
    others = _smallest_of_others(shortest)
    margin, cost = others - longest, np.maximum(others - shortest, 0.0)
    explained = (margin > 0) & (planned >= _PLANNED_SHARE * margin)
    return Waiting(
        margin=np.where(explained, np.nan, margin),
        cost=np.where(explained, 0.0, np.nan_to_num(cost)),
    )


def _smallest_of_others(values: Matrix) -> Matrix:
    """For each unit the smallest value of all other units at that step; NaN without others."""
    if len(values) <= 1:
        return np.full_like(values, np.nan)
    filled = np.where(np.isnan(values), np.inf, values)
    lowest = np.argmin(filled, axis=0)
    first, second = np.partition(filled, 1, axis=0)[:2]
    others = np.where(np.arange(len(values))[:, None] == lowest, second, first)
    return np.where(np.isinf(others) | np.isnan(values), np.nan, others)


def _planned(steps: Steps) -> Matrix:
    """Seconds of checkpoint and evaluation beyond the rank that had least of them.

    They may stand in the step they delay or at the end of the step before.
    """
    own = np.sum([np.nan_to_num(steps.phases[phase]) for phase in _PLANNED_PHASES], axis=0)
    beyond: Matrix = own - own.min(axis=0)
    before = np.pad(beyond, ((0, 0), (1, 0)))[:, :-1]
    return np.maximum(beyond, before)
