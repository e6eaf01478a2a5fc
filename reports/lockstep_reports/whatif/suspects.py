"""Who or what may have slowed a replayed job: uneven batches, a heavy stage, or some ranks.

Levelling decides which of the three it was (``factors``): idealising a part takes its unevenness
away too, so that uneven batches would look like a slow stage.
"""

from dataclasses import dataclass

import numpy as np

from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.recording.operations import OperationTrace
from lockstep_reports.whatif.analysis import WORST_SHARE, Explanation, WhatIf, explain
from lockstep_reports.whatif.scenarios import step_seconds_of_one
from lockstep_reports.wording import percent

_AMBIGUOUS = "With one rank a stage, a slow rank and a heavy stage look alike."
_MAX_SHARE_OF_RANKS = 0.5  # more ranks than that are no exception
_MAX_REPLAYED = 512  # each costs a replay of all steps
_MIN_SHARE_OF_WORST = 0.5
_MIN_SLOWDOWN = 0.01
_MAX_SHARE_OF_RANKS = 0.5  # more ranks than that are no exception


def worst_ranks(what_if: WhatIf) -> Flags | None:
    """The ranks that slow the job by at least half as much as the worst one.

    Returns:
        A mask [stages, shards, replicas]; None when no single rank slows the job by 1 %, or when
        too many do.
    """
    rank, slowdown = what_if.model.grid.rank, what_if.worker_slowdown
    num_replayed = min(rank.size, _MAX_REPLAYED, max(8, int(WORST_SHARE * rank.size)))
    candidates = np.lexsort((rank.ravel(), -slowdown.ravel()))[:num_replayed]
    excess = _single_slowdown(what_if, candidates) - 1
    if excess.max() < _MIN_SLOWDOWN:
        return None
    is_slow = excess >= _MIN_SHARE_OF_WORST * excess.max()
    # Where all candidates are slow, more ranks may be that were not replayed.
    if is_slow.all() and num_replayed < rank.size:
        return None
    mask = np.zeros(rank.size, bool)
    mask[candidates[is_slow]] = True
    if mask.mean() > _MAX_SHARE_OF_RANKS:
        return None
    return mask.reshape(rank.shape)


def _single_slowdown(what_if: WhatIf, candidates: Integers) -> Matrix:
    """Slowdown by each of some workers, all others ideal: ratio, [candidates].

    Candidates are indices into the flattened [stages, shards, replicas].
    """
    model = what_if.model
    stages, shards, replicas = model.grid.rank.shape
    stage_shard, replica = np.divmod(candidates, replicas)
    workers = stage_shard[:, None] == np.arange(stages * shards)[None]
    seconds = step_seconds_of_one(model, replica, workers)
    slowdown: Matrix = seconds.mean(axis=1) / what_if.ideal_seconds.mean()
    return slowdown


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """When a replay names somebody.

    Attributes:
        slowdown: ratio to the ideal step; below it nobody slowed the job.
        explained: share of the slowdown that a culprit must explain.
        simulation_error: from this ratio on the replay is not trusted.
        correlation: from it on long micro-batches are long forward and backward.
        batch_spread: by how much micro-batches must differ for that to matter, as a ratio.
        even_batches: share of the slowdown that even batches must remove for them to be the cause.
        even_stages: the same for even stages.
        even_ranks: the same for equally fast ranks, where batches are uneven too.
        stage_share: share of a stage's ranks that must be slow for the stage to be the culprit.
    """

    slowdown: float = 1.03
    explained: float = 0.5
    simulation_error: float = 0.05
    correlation: float = 0.9
    batch_spread: float = 0.05
    even_batches: float = 0.5
    even_stages: float = 0.25
    even_ranks: float = 0.25
    stage_share: float = 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class Culprit:
    """Who slowed a job.

    Attributes:
        kind: ``rank``, ``group`` or ``stage``.
        group: name of the group; None for ranks that share none.
        is_node: whether the group is a node.
        cause: why it is slow, where that is known.
        explanation: what the replay says without its slowness.
        mask: its workers [stages, shards, replicas].
        doubts: sentences to add to the evidence.
    """

    kind: str
    group: str | None
    is_node: bool
    cause: str | None
    explanation: Explanation
    mask: Flags
    doubts: tuple[str, ...] = ()


def find_culprit(trace: OperationTrace, what_if: WhatIf, limits: Limits) -> Culprit | None:
    """The stage or the ranks that slowed the job; None for neither."""
    if stage := _uneven_stage(what_if, limits):
        return stage
    if ranks := _slower_ranks(trace, what_if, limits):
        return ranks
    # Ideal batches would take the unevenness with them, so idealising says nothing there.
    if are_uneven(what_if, limits):
        return None
    return _worker_culprit(trace, what_if, limits) or _stage_culprit(what_if, limits)


def _slower_ranks(trace: OperationTrace, what_if: WhatIf, limits: Limits) -> Culprit | None:
    """The ranks slower than their stage and replica, where they explain more than all else."""
    factors, uneven = what_if.factors, are_uneven(what_if, limits)
    others = max(factors.batches or 0.0 if uneven else 0.0, factors.stages or 0.0)
    removed = factors.ranks or 0.0
    # Uneven batches always hold a share of the slowdown, so half of it would be too much to ask.
    if removed < (limits.even_ranks if uneven else limits.explained) or removed <= others:
        return None
    mask = factors.slow_ranks
    if mask is None or not mask.any() or mask.mean() > _MAX_SHARE_OF_RANKS:
        return None
    return _culprit_of_ranks(trace, what_if, mask)


def _worker_culprit(trace: OperationTrace, what_if: WhatIf, limits: Limits) -> Culprit | None:
    """Few ranks that explain the slowdown, unless they are all of a stage."""
    rank = what_if.model.grid.rank
    mask = worst_ranks(what_if)
    if mask is None:
        return None
    in_stage = mask.mean(axis=(1, 2))
    stage = int(np.argmax(in_stage))
    if (
        rank.shape[0] > 1
        and in_stage[stage] >= limits.stage_share
        and mask.sum() == mask[stage].sum()
    ):
        return None
    culprit = _culprit_of_ranks(trace, what_if, mask)
    return culprit if (culprit.explanation.removed or 0.0) >= limits.explained else None


def _culprit_of_ranks(trace: OperationTrace, what_if: WhatIf, mask: Flags) -> Culprit:
    explanation = explain(what_if.model, mask, what_if.seconds, what_if.ideal_seconds)
    group = _group_of(trace, explanation.ranks)
    return Culprit(
        kind="rank" if group is None else "group",
        group=group,
        is_node=bool(trace.nodes),
        cause=None,
        explanation=explanation,
        mask=mask,
    )


def _group_of(trace: OperationTrace, ranks: tuple[int, ...]) -> str | None:
    """The node that consists of just these ranks, or ranks in sequence of nodes without names."""
    if len(ranks) == 1:
        return None
    names = {trace.nodes.get(rank) for rank in ranks}
    if len(names) == 1 and None not in names:
        (name,) = names
        members = [rank for rank, node in trace.nodes.items() if node == name]
        return name if len(members) == len(ranks) else None
    is_sequence = ranks[-1] - ranks[0] == len(ranks) - 1
    return f"ranks {ranks[0]} to {ranks[-1]}" if is_sequence and not trace.nodes else None


def _uneven_stage(what_if: WhatIf, limits: Limits) -> Culprit | None:
    """The heaviest stage, where level stages would save more than even batches or ranks."""
    factors = what_if.factors
    removed = factors.stages or 0.0
    batches = (factors.batches or 0.0) if are_uneven(what_if, limits) else 0.0
    if removed < limits.even_stages or removed <= max(batches, factors.ranks or 0.0):
        return None
    return _culprit_of_stage(what_if, factors.heaviest_stage, removed)


def _stage_culprit(what_if: WhatIf, limits: Limits) -> Culprit | None:
    stages = what_if.stages
    if len(stages) <= 1:
        return None
    stage = int(np.argmax([explanation.removed or 0.0 for explanation in stages]))
    if (stages[stage].removed or 0.0) < limits.explained:
        return None
    return _culprit_of_stage(what_if, stage, None)


def _culprit_of_stage(what_if: WhatIf, stage: int, levelled: float | None) -> Culprit:
    mask = np.zeros(what_if.model.grid.rank.shape, bool)
    mask[stage] = True
    has_one_rank = mask[stage].size == 1
    doubts = (_AMBIGUOUS,) if has_one_rank else ()
    if levelled is not None:
        doubts = (f"Stages of equal length would remove {percent(levelled)} of it.", *doubts)
    return Culprit(
        kind="stage",
        group=f"stage {stage}",
        is_node=False,
        cause=None if has_one_rank else "stage_imbalance",
        doubts=doubts,
        explanation=what_if.stages[stage],
        mask=mask,
    )


def are_uneven(what_if: WhatIf, limits: Limits) -> bool:
    """Whether micro-batches are long forward and backward alike, and differ enough to matter."""
    factors = what_if.factors
    if factors.correlation is None or factors.spread is None:
        return False
    return factors.correlation >= limits.correlation and factors.spread >= limits.batch_spread


def has_uneven_batches(what_if: WhatIf, limits: Limits) -> bool:
    """Whether even batches would remove at least half, and more than level stages or ranks."""
    factors = what_if.factors
    removed = factors.batches or 0.0
    others = max(factors.stages or 0.0, factors.ranks or 0.0)
    return are_uneven(what_if, limits) and removed >= limits.even_batches and removed > others
