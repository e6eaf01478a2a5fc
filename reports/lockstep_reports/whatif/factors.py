"""Splits computation into what the stage, the rank and the micro-batch make of it, and levels each.

Idealising a part of a job takes all its noise away, so uneven batches look like slow stages and
slow ranks. Levelling takes one factor only: the same work, spread evenly. A duration is taken as
stage x rank x micro-batch; what all stages of a replica share in a step is the micro-batches', what
a rank has beyond its replica and its stage is the rank's.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.recording.operations import BACKWARD, FORWARD
from lockstep_reports.whatif.scenarios import Model, replay

# A worker's level is compared with the lower quartile of its stage, so up to three in four of a
# stage's ranks may be slow and are still not the stage's.
_LOW_QUANTILE = 0.25
# From three stages on one slow rank does not move their median.
_MANY_STAGES = 3
_MIN_RANK_EXCESS = 0.05


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Factors:
    """What levelling would save, as shares of the slowdown; None where it cannot be computed.

    Attributes:
        batches: all micro-batches of a step equally long.
        stages: all stages equally long, with uneven batches and slow ranks kept.
        ranks: all ranks of a stage equally fast.
        correlation: of forward and backward durations of a micro-batch, within rank and step.
        spread: standard deviation of the forward durations of micro-batches within rank and step,
            relative to their mean.
        slow_ranks: ranks that are slower than their stage and replica in most steps
            [stages, shards, replicas].
    """

    batches: float | None = None
    stages: float | None = None
    ranks: float | None = None
    correlation: float | None = None
    spread: float | None = None
    heaviest_stage: int = 0
    slow_ranks: Flags | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Computed:
    """One type of computation as a dense block.

    Attributes:
        ops: operations [stages, shards, batches].
        part: number of the stage's model part (chunk) of each batch [batches].
        seconds: [stages, shards, batches, replicas, steps].
    """

    ops: Integers
    part: Integers
    seconds: Matrix


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Split:
    """Factors of one type; 1 is usual.

    Attributes:
        level: usual seconds of a stage's parts [stages, batches].
        rank: of each rank in each step [stages, shards, replicas, steps].
        batch: of each micro-batch [batches, replicas, steps].
    """

    level: Matrix
    rank: Matrix
    batch: Matrix


def measure_factors(model: Model, seconds: Matrix, ideal_seconds: Matrix) -> Factors:
    """Levels micro-batches, stages and ranks of a trace in turn.

    Args:
        model: the trace.
        seconds: duration of each step as recorded: seconds, [steps].
        ideal_seconds: the same with every operation ideal.
    """
    forward, backward = (_computed(model, name) for name in (FORWARD, BACKWARD))
    lost = float(seconds.mean() - ideal_seconds.mean())
    if forward is None or backward is None or lost <= 0:
        return Factors()
    blocks = (forward, backward)
    splits = [_split(block) for block in blocks]

    def removed(levelled: Callable[[_Computed, _Split], Matrix]) -> float:
        changed = model.recorded.astype(np.float64)
        for block, split in zip(blocks, splits, strict=True):
            changed[block.ops] = levelled(block, split)
        return float(seconds.mean() - _replayed(model, changed)) / lost

    correlation, spread = _unevenness(forward, backward)
    per_stage = sum(split.level.sum(axis=1) for split in splits)
    return Factors(
        batches=removed(_even_batches),
        stages=removed(_even_stages) if len(blocks[0].ops) > 1 else 0.0,
        ranks=removed(_even_ranks),
        correlation=correlation,
        spread=spread,
        heaviest_stage=int(np.argmax(per_stage)),
        slow_ranks=_slow_ranks(splits),
    )


def _computed(model: Model, name: str) -> _Computed | None:
    """The operations of a type; None where not every rank has as many of each part."""
    grid = model.grid
    ops = np.flatnonzero(grid.select_type(name))
    keys = (grid.order[ops], grid.batch[ops], grid.chunk[ops], grid.shard[ops], grid.stage[ops])
    ops = ops[np.lexsort(keys)]
    num_ranks = grid.stages * grid.shards
    if not len(ops) or len(ops) % num_ranks:
        return None
    block = ops.reshape(grid.stages, grid.shards, -1)
    if np.any(np.ptp(grid.stage[block], axis=(1, 2))) or np.any(np.ptp(grid.shard[block], axis=2)):
        return None
    return _Computed(ops=block, part=grid.chunk[block[0, 0]], seconds=model.recorded[block])


def _split(block: _Computed) -> _Split:
    seconds = np.maximum(block.seconds, 1e-9)
    # By model part, because chunks hold different layers.
    usual: Matrix = np.empty(block.seconds.shape[:-1])
    for part in np.unique(block.part):
        inside = block.part == part
        of_part = np.median(seconds[:, :, inside].mean(axis=2), axis=-1)
        usual[:, :, inside] = of_part[:, :, None]
    of_workers = usual.swapaxes(2, 3).reshape(len(usual), -1, usual.shape[2])
    level = np.quantile(of_workers, _LOW_QUANTILE, axis=1, method="lower")
    relative = seconds / level[:, None, :, None, None]
    of_rank = relative.mean(axis=2)
    workers = of_rank.reshape(-1, *of_rank.shape[2:])
    reduce = np.median if len(workers) >= _MANY_STAGES else np.min
    common = np.asarray(reduce(workers, axis=0))
    # What a replica has in all steps is its ranks', not its batches'.
    common = common / np.median(common, axis=1, keepdims=True)
    profile = (relative / of_rank[:, :, None]).mean(axis=(0, 1))
    return _Split(level=level, rank=of_rank / common, batch=profile * common)


def _even_batches(block: _Computed, split: _Split) -> Matrix:
    # Equal shares of the step's own total: the data stays the same, its division changes.
    mean = split.batch.mean(axis=(0, 1))
    levelled: Matrix = block.seconds / split.batch * mean
    return levelled


def _even_stages(block: _Computed, split: _Split) -> Matrix:
    ratio = split.level.mean() / split.level
    levelled: Matrix = block.seconds * ratio[:, None, :, None, None]
    return levelled


def _even_ranks(block: _Computed, split: _Split) -> Matrix:
    usual = np.quantile(split.rank, _LOW_QUANTILE)
    levelled: Matrix = block.seconds / np.maximum(split.rank / usual, 1.0)[:, :, None]
    return levelled


def _slow_ranks(splits: list[_Split]) -> Flags:
    """Ranks that are slower in most steps, by half as much as the slowest one."""
    usual = np.mean([np.median(split.rank, axis=-1) for split in splits], axis=0)
    excess = usual / np.quantile(usual, _LOW_QUANTILE) - 1
    is_slow: Flags = excess >= max(_MIN_RANK_EXCESS, float(excess.max()) / 2)
    return is_slow


def _replayed(model: Model, seconds: Matrix) -> float:
    """Mean duration of a step with other durations: seconds, [operations, replicas, steps]."""

    def durations(ops: Integers) -> Matrix:
        changed: Matrix = seconds[ops][:, None]
        return changed

    end = replay(model.plan, durations, (1, *seconds.shape[1:]))
    return float(end[model.last].max(axis=(0, 2)).mean())


def _unevenness(*blocks: _Computed) -> tuple[float | None, float | None]:
    """Correlation of forward and backward, and spread of forward, within rank and step."""
    forward, backward = map(_center_durations, blocks)
    if forward.size != backward.size or not (forward.std() and backward.std()):
        return None, None
    correlation = np.corrcoef(forward, backward)[0, 1]
    return nan_stats.number(correlation), float(forward.std())


def _center_durations(block: _Computed) -> Matrix:
    """Durations less the mean of their rank, step and model part, relative to it [values]."""
    beyond = np.zeros_like(block.seconds, dtype=np.float64)
    for part in np.unique(block.part):
        inside = block.seconds[:, :, block.part == part]
        mean = inside.mean(axis=2, keepdims=True)
        beyond[:, :, block.part == part] = inside / np.maximum(mean, 1e-9) - 1
    return beyond.ravel()
