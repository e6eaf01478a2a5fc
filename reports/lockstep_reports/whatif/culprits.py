"""Picks the few ranks that a slowdown may hang on, each replayed for itself."""

import numpy as np

from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.whatif.analysis import WORST_SHARE, WhatIf
from lockstep_reports.whatif.scenarios import step_seconds_of_one

MOST_TRIED = 512
_LIKE_THE_WORST = 0.5
_LEAST = 0.01


def worst_ranks(what_if: WhatIf) -> Flags | None:
    """The ranks that slow the job by at least half as much as the worst one.

    None when no single rank slows it by one in a hundred, or when too many do. The mask is
    [stages x shards x replicas].
    """
    rank, slowdown = what_if.model.grid.rank, what_if.worker_slowdown
    most = min(rank.size, MOST_TRIED, max(8, int(WORST_SHARE * rank.size)))
    tried = np.lexsort((rank.ravel(), -slowdown.ravel()))[:most]
    alone = _alone(what_if, tried)
    excess = alone - 1
    if excess.max() < _LEAST:
        return None
    like = excess >= _LIKE_THE_WORST * excess.max()
    if like.all() and most < rank.size:
        return None
    mask = np.zeros(rank.size, bool)
    mask[tried[like]] = True
    if mask.mean() > 0.5:  # noqa: PLR2004  # half of all are no exception
        return None
    return mask.reshape(rank.shape)


def _alone(what_if: WhatIf, tried: Integers) -> Matrix:
    """Slowdown by each of some workers alone [tried]."""
    model = what_if.model
    stages, shards, replicas = model.grid.rank.shape
    place, replica = np.divmod(tried, replicas)
    workers = place[:, None] == np.arange(stages * shards)[None]
    seconds = step_seconds_of_one(model, replica, workers)
    alone: Matrix = seconds.mean(axis=1) / what_if.ideal_seconds.mean()
    return alone
