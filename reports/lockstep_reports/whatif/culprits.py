"""Picks the few ranks that may cause a slowdown, each replayed by itself."""

import numpy as np

from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.whatif.analysis import WORST_SHARE, WhatIf
from lockstep_reports.whatif.scenarios import step_seconds_of_one

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
