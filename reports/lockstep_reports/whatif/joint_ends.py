"""Which operations end together, and by how much each rank leaves them after the others.

Every kind of collective is evidence of its own: a clock that is off shifts all of them alike, while
a rank that is merely late out of one kind is late in that kind only.
"""

from dataclasses import dataclass

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.recording import operations as optype
from lockstep_reports.search.units import beyond_median_of_others
from lockstep_reports.whatif.grid import Grid

_ACROSS_REPLICAS = (
    optype.PARAMS_GATHER,
    optype.GRADS_SCATTER,
    optype.SEPARATE_GRADS,
    optype.PARAMS_SYNC,
    optype.GRADS_SYNC,
)
# A send to the next stage ends with the receive of the same number there; backward the other way.
_PAIRS = (
    (optype.FORWARD_SEND, optype.FORWARD_RECV, 1),
    (optype.BACKWARD_SEND, optype.BACKWARD_RECV, -1),
)
# Among more members the median of all is as good as that of the others, and far quicker.
_MANY = 16


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Kind:
    """One kind of operation whose members end together.

    Attributes:
        groups: the operations of each group [members].
        over_replicas: whether the replicas end together too.
    """

    name: str
    groups: tuple[Integers, ...]
    over_replicas: bool


def joint_kinds(grid: Grid) -> list[Kind]:
    """The kinds of operations that two ranks or more end together."""
    kinds = []
    if grid.rank.shape[2] > 1:
        for name in _ACROSS_REPLICAS:
            ops = np.flatnonzero(grid.select_type(name))
            kinds.append(Kind(name=name, groups=tuple(ops[:, None]), over_replicas=True))
    clips = np.flatnonzero(grid.select_type(optype.CLIP))
    by_order = tuple(clips[grid.order[clips] == number] for number in np.unique(grid.order[clips]))
    kinds.append(Kind(name=optype.CLIP, groups=by_order, over_replicas=True))
    kinds += [
        Kind(name=name, groups=_group_in_replica(grid, name), over_replicas=False)
        for name in (optype.EMBEDDING_GRADS, *optype.OVER_TENSOR)
    ]
    kinds += [
        Kind(name=send, groups=_pairs(grid, send, receive, towards), over_replicas=False)
        for send, receive, towards in _PAIRS
    ]
    replicas = grid.rank.shape[2]
    return [
        kind
        for kind in kinds
        if any(len(group) * (replicas if kind.over_replicas else 1) > 1 for group in kind.groups)
    ]


def _group_in_replica(grid: Grid, name: str) -> tuple[Integers, ...]:
    """Operations of one type and number: over stages, or over the shards of a stage."""
    ops = np.flatnonzero(grid.select_type(name))
    stage = grid.stage[ops] if name in optype.OVER_TENSOR else np.zeros_like(ops)
    keys = np.stack([grid.order[ops], stage])
    _, number = np.unique(keys, axis=1, return_inverse=True)
    number = number.reshape(-1)
    return tuple(ops[number == at] for at in np.unique(number))


def _pairs(grid: Grid, send: str, receive: str, towards: int) -> tuple[Integers, ...]:
    """Sends with their receives, where a stage sends as often as the next one receives."""
    pairs: list[Integers] = []
    for stage in range(grid.stages):
        for shard in range(grid.shards):
            sent = _on(grid, send, stage, shard)
            received = _on(grid, receive, stage + towards, shard)
            # Where the recorder wrote down more than took place, the numbers do not match.
            if len(sent) == len(received):
                pairs += list(np.stack([sent, received], axis=1))
    return tuple(pairs)


def _on(grid: Grid, name: str, stage: int, shard: int) -> Integers:
    ops = np.flatnonzero(grid.select_type(name) & (grid.stage == stage) & (grid.shard == shard))
    in_order: Integers = ops[np.argsort(grid.order[ops], kind="stable")]
    return in_order


def leads(grid: Grid, kinds: list[Kind], end: Matrix) -> Matrix:
    """By how much each rank leaves each kind after the others of its group.

    Args:
        grid: the operations.
        kinds: of ``joint_kinds``.
        end: of each operation: seconds, [operations, replicas, steps].

    Returns:
        Seconds, [kinds, stages, shards, replicas, steps], the mean over a kind's groups; NaN where
        the rank takes no part.
    """
    shape = (len(kinds), *grid.rank.shape, end.shape[2])
    total, count = np.zeros(shape), np.zeros(shape[:-1])
    for number, kind in enumerate(kinds):
        for group in kind.groups:
            members = end[group]
            # All members in one row each, or each replica's by themselves.
            values = members.reshape(-1, end.shape[2]) if kind.over_replicas else members
            if len(values) <= 1:
                continue
            beyond = _beyond_others(values).reshape(members.shape)
            worker = grid.stage[group], grid.shard[group]
            np.add.at(total[number], worker, beyond)
            np.add.at(count[number], worker, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Matrix = np.where(count[..., None] > 0, total / count[..., None], np.nan)
    return mean


def _beyond_others(values: Matrix) -> Matrix:
    """Each member's value beyond the median of the others [members, ...]."""
    if len(values) <= _MANY:
        return beyond_median_of_others(values)
    beyond: Matrix = values - np.median(values, axis=0)
    return beyond


def spread_of_ends(kinds: list[Kind], end: Matrix) -> tuple[float | None, float | None]:
    """How far apart ranks leave a collective: median and 95th percentile in seconds, or None."""
    spreads = [
        np.ptp(end[group], axis=(0, 1) if kind.over_replicas else 0).ravel()
        for kind in kinds
        for group in kind.groups
    ]
    if not spreads:
        return None, None
    values = np.concatenate(spreads)
    return float(np.median(values)), float(nan_stats.quantile(values, 0.95))
