"""Puts all ranks of a trace on one clock, by the collectives that they leave together."""

from dataclasses import dataclass, replace

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.recording import operations as optype
from lockstep_reports.recording.operations import CLIP, IDLE_STEPS
from lockstep_reports.search.score import beyond_others
from lockstep_reports.whatif.graph import Grid, NoReplayError
from lockstep_reports.wording import plural

_REPLICA_TYPES = (
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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Kind:
    """One kind of operation whose members end together, all replicas too or each by itself."""

    name: str
    groups: tuple[Integers, ...]
    over_replicas: bool


def joint_kinds(grid: Grid) -> list[Kind]:
    """The kinds of operations that two ranks or more end together."""
    kinds = []
    if grid.rank.shape[2] > 1:
        for name in _REPLICA_TYPES:
            ops = np.flatnonzero(grid.select_type(name))
            kinds.append(Kind(name=name, groups=tuple(ops[:, None]), over_replicas=True))
    clips = np.flatnonzero(grid.select_type(optype.CLIP))
    by_order = tuple(clips[grid.order[clips] == number] for number in np.unique(grid.order[clips]))
    kinds.append(Kind(name=optype.CLIP, groups=by_order, over_replicas=True))
    kinds += [
        Kind(name=name, groups=_group_in_replica(grid, name), over_replicas=False)
        for name in (optype.EMBEDDING_GRADS, *optype.TENSOR_TYPES)
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
    stage = grid.stage[ops] if name in optype.TENSOR_TYPES else np.zeros_like(ops)
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
    """By how much each rank leaves each kind after the others of its group, mean over its groups.

    Ends of operations are seconds, [operations, replicas, steps], the result [kinds, stages,
    shards, replicas, steps]; NaN where the rank takes no part.
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
            beyond = beyond_others(values)[:, :].reshape(members.shape)
            worker = grid.stage[group], grid.shard[group]
            np.add.at(total[number], worker, beyond)
            np.add.at(count[number], worker, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Matrix = np.where(count[..., None] > 0, total / count[..., None], np.nan)
    return mean


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


# Offsets below it are left as they are, so that traces with well-synchronised clocks, such as the
# published ones, are replayed exactly as they were recorded.
MIN_OFFSET_SECONDS = 2e-3
# A clock has jumped in a step where it is off by so many times its usual variation, and by so
# much at least: a clock that hardly varies must not be set for microseconds.
_JUMP_SIGMAS, _JUMP_SECONDS = 8.0, 1e-2
_MAX_ROUNDS = 64


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Clocks:
    """How far the clocks were apart.

    Attributes:
        offset_seconds: by how much each rank's clock was ahead and is set back; zero where it
            stays: seconds, [stages, shards, replicas].
        residual_seconds: how far apart ranks still leave a collective, median; None without a
            collective that ranks leave together.
    """

    offset_seconds: Matrix
    residual_seconds: float | None
    residual_p95_seconds: float | None


def align_clocks(grid: Grid, min_offset_seconds: float = MIN_OFFSET_SECONDS) -> tuple[Grid, Clocks]:
    """The grid on one clock; clocks that jump are set back, and impossible steps are left out.

    A clock shifts all of a rank's times. So it is set back only where more kinds of collectives
    come together by that than are torn apart: a rank that is late out of one kind has a clock that
    is right. Where no step is left it raises NoReplayError.
    """
    kinds = joint_kinds(grid)
    end = grid.end.astype(np.float64)
    offset = _offsets(grid, kinds, end, min_offset_seconds)
    end = _shifted(grid, end, offset[..., None])
    jump = _jumps(grid, kinds, end)
    aligned = grid
    if offset.any() or jump.any():
        shift = offset[..., None] + jump
        start = _shifted(grid, grid.start.astype(np.float64), shift)
        aligned = replace(grid, start=start - start.min(axis=(0, 1)))
    # Clipping joins all ranks; without it the collectives of replicas.
    joins = [kind for kind in kinds if kind.name == CLIP]
    joins = joins or [kind for kind in kinds if kind.over_replicas]
    median, p95 = spread_of_ends(joins, aligned.end.astype(np.float64))
    return _possible_steps(aligned), Clocks(
        offset_seconds=offset, residual_seconds=median, residual_p95_seconds=p95
    )


def _shifted(grid: Grid, seconds: Matrix, shift: Matrix) -> Matrix:
    """Times [operations, replicas, steps] set back by [stages, shards, replicas, steps or 1]."""
    moved: Matrix = seconds - shift[grid.stage, grid.shard]
    return moved


def _offsets(grid: Grid, kinds: list[Kind], end: Matrix, least_seconds: float) -> Matrix:
    """By how much each clock is ahead: seconds, [stages, shards, replicas]; zero where it stays.

    The clock with the most evidence is set back first: with it wrong, the others of its groups
    seem wrong too.
    """
    offset = np.zeros(grid.rank.shape)
    if not kinds:
        return offset
    for _ in range(min(_MAX_ROUNDS, 2 * grid.rank.size)):
        lead = nan_stats.median(leads(grid, kinds, _shifted(grid, end, offset[..., None])), axis=-1)
        ahead, votes = _voted(lead)
        ahead = np.where((votes > 0) & (np.abs(ahead) >= least_seconds), ahead, 0.0)
        if not ahead.any():
            break
        offset += _strongest(ahead, votes)
    offset[np.abs(offset) < least_seconds] = 0
    return offset


def _voted(lead: Matrix) -> tuple[Matrix, Matrix]:
    """The shift that most kinds agree on, and how many more come together than are torn by it.

    Leads are seconds, [kinds, ...], NaN where a rank takes no part in a kind; both results [...].
    """
    ahead = np.nan_to_num(nan_stats.median(lead, axis=0))
    change = np.abs(lead) - np.abs(lead - ahead)
    votes: Matrix = np.nansum(np.sign(change), axis=0)
    return ahead, votes


def _strongest(ahead: Matrix, votes: Matrix) -> Matrix:
    """The shifts of those ranks alone that no rank of their stage or replica outdoes.

    Both are [stages, shards, replicas].
    """
    rank = votes + np.abs(ahead) / (np.abs(ahead).max() + 1)
    rank = np.where(ahead != 0, rank, -np.inf)
    # Of exact equals the first is taken: two ranks that disagree are one difference.
    rank = rank - 1e-12 * np.arange(rank.size).reshape(rank.shape)
    best = (rank == rank.max(axis=2, keepdims=True)) & (
        rank == rank.max(axis=(0, 1), keepdims=True)
    )
    return np.where(best & np.isfinite(rank), ahead, 0.0)


def _jumps(grid: Grid, kinds: list[Kind], end: Matrix) -> Matrix:
    """How far clocks are from their usual offset in steps after a jump; zero in all others.

    Null hypothesis: a clock keeps its offset, and its estimates vary by noise. Nothing is assumed
    of the noise but that its median deviation shows its size; eight of these are over five
    standard deviations of normal noise.

    Ends are by clocks without their usual offset: seconds, [operations, replicas, steps]; jumps
    are seconds, [stages, shards, replicas, steps].
    """
    jump = np.zeros((*grid.rank.shape, end.shape[2]))
    for _ in range(min(_MAX_ROUNDS, 2 * grid.rank.size) if kinds else 0):
        lead = leads(grid, kinds, _shifted(grid, end, jump))
        lead -= nan_stats.median(lead, axis=-1)[..., None]
        off, votes = _voted(lead)
        usual = np.median(np.abs(off), axis=-1, keepdims=True)
        off = np.where(np.abs(off) > np.maximum(_JUMP_SECONDS, _JUMP_SIGMAS * usual), off, 0.0)
        off = np.where(votes > 0, off, 0.0)
        # In each step the clock that is furthest off, for the others of its groups seem off too.
        flat = np.abs(off).reshape(-1, off.shape[-1])
        furthest = np.arange(len(flat))[:, None] == np.argmax(flat, axis=0)
        off = np.where(furthest.reshape(off.shape), off, 0.0)
        if not off.any():
            break
        jump += off
    return jump


def _possible_steps(grid: Grid) -> Grid:
    """The grid without steps whose times cannot be true: nobody worked for most of them.

    Raises NoReplayError where none is left.
    """
    busy = np.zeros((*grid.rank.shape, len(grid.steps)))
    np.add.at(busy, (grid.stage, grid.shard), grid.duration)
    step_seconds = grid.end.max(axis=(0, 1)) - grid.start.min(axis=(0, 1))
    possible = step_seconds <= busy.max(axis=(0, 1, 2)) + IDLE_STEPS * np.median(step_seconds)
    if possible.all():
        return grid
    if not possible.any():
        raise NoReplayError("the clocks of the ranks jump in every step")
    lost = plural(int(np.count_nonzero(~possible)), "step")
    return replace(
        grid,
        start=grid.start[:, :, possible],
        duration=grid.duration[:, :, possible],
        steps=grid.steps[possible],
        notes=(*grid.notes, f"{lost} with a time that cannot be true are not replayed."),
    )
