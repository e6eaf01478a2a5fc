"""Who or what may have slowed a replayed job: uneven batches, a heavy stage, or some ranks.

Levelling decides which of the three it was (``factors``): idealising a part takes its unevenness
away too, so that uneven batches would look like a slow stage.
"""

from dataclasses import dataclass

import numpy as np

from lockstep_reports.arrays import Flags
from lockstep_reports.recording.operations import OperationTrace
from lockstep_reports.whatif.analysis import WORST_SHARE, Explanation, WhatIf, explain
from lockstep_reports.whatif.scenarios import step_seconds_of_one
from lockstep_reports.wording import percent

_AMBIGUOUS = "With one rank a stage, a slow rank and a heavy stage look alike."
_MAX_SHARE_OF_RANKS = 0.5  # more ranks than that are no exception
_MAX_REPLAYED = 512  # each costs a replay of all steps
_MIN_SHARE_OF_WORST = 0.5
_MIN_SLOWDOWN = 0.01
MIN_EXPLAINED = 0.5
"""Share of the slowdown that a culprit must explain."""
# From this correlation on long micro-batches are long forward and backward (Lin et al.), and that
# matters where they differ by so much.
_MIN_CORRELATION, _MIN_BATCH_SPREAD = 0.9, 0.05
# Shares of the slowdown that levelling must remove to be the cause; equally fast ranks only where
# batches are uneven too.
_MIN_EVEN_BATCHES, _MIN_EVEN_STAGES, _MIN_EVEN_RANKS = 0.5, 0.25, 0.25
_MIN_SHARE_OF_STAGE = 0.8  # of its ranks that are slow, for the stage to be the culprit


def worst_ranks(what_if: WhatIf) -> Flags | None:
    """The ranks that slow the job by at least half as much as the worst one.

    Returns:
        A mask [stages, shards, replicas]; None when no single rank slows the job by 1 %, or when
        too many do.
    """
    rank, slowdown = what_if.model.grid.rank, what_if.worker_slowdown
    num_replayed = min(rank.size, _MAX_REPLAYED, max(8, int(WORST_SHARE * rank.size)))
    candidates = np.lexsort((rank.ravel(), -slowdown.ravel()))[:num_replayed]
    # One at a time, all others ideal.
    stage_shard, replica = np.divmod(candidates, rank.shape[2])
    workers = stage_shard[:, None] == np.arange(rank[..., 0].size)
    seconds = step_seconds_of_one(what_if.model, replica, workers)
    excess = seconds.mean(axis=1) / what_if.ideal_seconds.mean() - 1
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Culprit:
    """Who slowed a job.

    Attributes:
        kind: ``rank``, ``group`` or ``stage``.
        group: name of the group; None for ranks that share none.
        is_node: whether the group is a node.
        cause: why it is slow, where that is known.
        explanation: what the replay says without its slowness.
        doubts: sentences to add to the evidence.
    """

    kind: str
    group: str | None
    is_node: bool
    cause: str | None
    explanation: Explanation
    doubts: tuple[str, ...] = ()


def find_culprit(trace: OperationTrace, what_if: WhatIf) -> Culprit | None:
    """The stage or the ranks that slowed the job; None for neither."""
    if stage := _uneven_stage(what_if):
        return stage
    if ranks := _slower_ranks(trace, what_if):
        return ranks
    # Ideal batches would take the unevenness with them, so idealising says nothing there.
    if are_uneven(what_if):
        return None
    return _worker_culprit(trace, what_if) or _stage_culprit(what_if)


def _slower_ranks(trace: OperationTrace, what_if: WhatIf) -> Culprit | None:
    """The ranks slower than their stage and replica, where they explain more than all else."""
    uneven = are_uneven(what_if)
    batches, stages, removed = _levelled(what_if)
    others = max(batches if uneven else 0.0, stages)
    # Uneven batches always hold a share of the slowdown, so half of it would be too much to ask.
    if removed < (_MIN_EVEN_RANKS if uneven else MIN_EXPLAINED) or removed <= others:
        return None
    mask = what_if.factors.slow_ranks
    if mask is None or not mask.any() or mask.mean() > _MAX_SHARE_OF_RANKS:
        return None
    return _culprit_of_ranks(trace, what_if, mask)


def _worker_culprit(trace: OperationTrace, what_if: WhatIf) -> Culprit | None:
    """Few ranks that explain the slowdown, unless they are all of a stage."""
    rank = what_if.model.grid.rank
    mask = worst_ranks(what_if)
    if mask is None:
        return None
    in_stage = mask.mean(axis=(1, 2))
    stage = int(np.argmax(in_stage))
    if (
        rank.shape[0] > 1
        and in_stage[stage] >= _MIN_SHARE_OF_STAGE
        and mask.sum() == mask[stage].sum()
    ):
        return None
    culprit = _culprit_of_ranks(trace, what_if, mask)
    return culprit if (culprit.explanation.removed or 0.0) >= MIN_EXPLAINED else None


def _culprit_of_ranks(trace: OperationTrace, what_if: WhatIf, mask: Flags) -> Culprit:
    explanation = explain(what_if.model, mask, what_if.seconds, what_if.ideal_seconds)
    group = _group_of(trace, explanation.ranks)
    return Culprit(
        kind="rank" if group is None else "group",
        group=group,
        is_node=bool(trace.nodes),
        cause=None,
        explanation=explanation,
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


def _uneven_stage(what_if: WhatIf) -> Culprit | None:
    """The heaviest stage, where level stages would save more than even batches or ranks."""
    batches, removed, ranks = _levelled(what_if)
    if removed < _MIN_EVEN_STAGES or removed <= max(batches if are_uneven(what_if) else 0.0, ranks):
        return None
    return _culprit_of_stage(what_if, what_if.factors.heaviest_stage, removed)


def _stage_culprit(what_if: WhatIf) -> Culprit | None:
    stages = what_if.stages
    if len(stages) <= 1:
        return None
    stage = int(np.argmax([explanation.removed or 0.0 for explanation in stages]))
    if (stages[stage].removed or 0.0) < MIN_EXPLAINED:
        return None
    return _culprit_of_stage(what_if, stage, None)


def _culprit_of_stage(what_if: WhatIf, stage: int, levelled: float | None) -> Culprit:
    explanation = what_if.stages[stage]
    has_one_rank = len(explanation.ranks) == 1
    doubts = (_AMBIGUOUS,) if has_one_rank else ()
    if levelled is not None:
        doubts = (f"Stages of equal length would remove {percent(levelled)} of it.", *doubts)
    return Culprit(
        kind="stage",
        group=f"stage {stage}",
        is_node=False,
        cause=None if has_one_rank else "stage_imbalance",
        doubts=doubts,
        explanation=explanation,
    )


def are_uneven(what_if: WhatIf) -> bool:
    """Whether micro-batches are long forward and backward alike, and differ enough to matter."""
    factors = what_if.factors
    if factors.correlation is None or factors.spread is None:
        return False
    return factors.correlation >= _MIN_CORRELATION and factors.spread >= _MIN_BATCH_SPREAD


def has_uneven_batches(what_if: WhatIf) -> bool:
    """Whether even batches would remove at least half, and more than level stages or ranks."""
    removed, stages, ranks = _levelled(what_if)
    return are_uneven(what_if) and removed >= _MIN_EVEN_BATCHES and removed > max(stages, ranks)


def _levelled(what_if: WhatIf) -> tuple[float, float, float]:
    """Shares of the slowdown that level batches, stages and ranks remove; 0 where unknown."""
    factors = what_if.factors
    return factors.batches or 0.0, factors.stages or 0.0, factors.ranks or 0.0
