"""Computes what slowed a trace down: by type of operation, worker, stage and step.

Definitions of slowdown, M_W and M_S are those of Lin et al., OSDI 2025, and so is the share of
worst workers. T is the mean replayed step with all durations as recorded, T_ideal that with every
duration replaced by its type's ideal; an index says what stays as recorded, or what is removed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.recording import operations as optype
from lockstep_reports.recording.operations import BACKWARD, FORWARD, OperationTrace
from lockstep_reports.whatif.clocks import Clocks, align_clocks
from lockstep_reports.whatif.graph import NoReplayError, lay_out
from lockstep_reports.whatif.scenarios import (
    Model,
    Scenario,
    make_model,
    recorded_only,
    replay,
    step_seconds,
    step_seconds_of_one,
)

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

    Durations of steps are as recorded, and with every operation ideal: seconds, [steps].
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


WORST_SHARE = 0.03
_REPORTED_AS = {
    optype.FORWARD_SEND: "forward-pp-comm",
    optype.FORWARD_RECV: "forward-pp-comm",
    optype.BACKWARD_SEND: "backward-pp-comm",
    optype.BACKWARD_RECV: "backward-pp-comm",
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Explanation:
    """How much of the slowdown some workers explain.

    Attributes:
        mask: the workers [stages, shards, replicas].
        seconds: mean step with all operations as recorded, launch delays left out.
        without_seconds: mean step with the operations of these workers ideal.
        only_seconds: mean step with the operations of all others ideal.
        removed: share that vanishes when they are ideal: (T - T_removed) / (T - T_ideal); None
            where nothing is lost.
        added: share that they cause alone: (T_added - T_ideal) / (T - T_ideal); None likewise.
        lost_by_step: by how much each step would have been shorter without their slowness:
            seconds, [steps].
    """

    mask: Flags
    ranks: tuple[int, ...]
    seconds: float
    without_seconds: float
    only_seconds: float
    removed: float | None
    added: float | None
    lost_by_step: Matrix


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WhatIf:
    """The answers. Slowdowns are ratios to the ideal step; durations of steps are seconds.

    Attributes:
        recorded_seconds: as recorded [steps].
        seconds: the same replayed, launch delays left out [steps].
        ideal_seconds: the same with every operation ideal [steps].
        by_type: with all ideal but one type, by its name [steps].
        by_replica: with all ideal but one replica [replicas, steps]; ``by_stage`` likewise.
        worker_slowdown: the smaller one of its replica and its stage [stages, shards, replicas].
        worst: the worst 3 % of the workers together.
        stages: each stage, as if it were repaired.
        factors: what levelling micro-batches, stages or ranks would save.
    """

    model: Model
    clocks: Clocks
    recorded_seconds: Matrix
    seconds: Matrix
    ideal_seconds: Matrix
    by_type: dict[str, Matrix]
    by_replica: Matrix
    by_stage: Matrix
    worker_slowdown: Matrix
    worst: Explanation
    stages: tuple[Explanation, ...]
    factors: Factors

    @property
    def slowdown(self) -> float:
        """S = T / T_ideal, ratios of mean steps."""
        return _ratio(self.seconds, self.ideal_seconds)

    @property
    def waste_ratio(self) -> float:
        """Share of the time that an ideal run would not have needed: 1 - 1 / S."""
        return 1 - 1 / self.slowdown

    @property
    def launch_slowdown(self) -> float:
        """Recorded mean step over replayed one: what happened outside the recorded operations."""
        return _ratio(self.recorded_seconds, self.seconds)

    @property
    def simulation_error_ratio(self) -> float:
        """|T - T_recorded| / T_recorded, by which the paper discards replays (gate: 5 %)."""
        return abs(1 / self.launch_slowdown - 1)

    @property
    def m_w(self) -> float | None:
        """M_W: the share that vanishes when the worst 3 % of the workers are ideal."""
        return self.worst.removed

    @property
    def m_s(self) -> float | None:
        """M_S: the share that vanishes when the last stage is ideal; None without a pipeline."""
        return self.stages[-1].removed if len(self.stages) > 1 else None


def ask_what_if(trace: OperationTrace) -> WhatIf:
    """Replays a trace with every question's durations; raises NoReplayError."""
    model, clocks = _make_one_clock(trace)
    grid = model.grid
    reported, scenarios = _scenarios_by_type(model)
    stages = np.arange(grid.stages)
    stage_masks = [np.broadcast_to(stages == n, grid.rank.T.shape).T for n in stages]
    scenarios += [recorded_only(model, workers=mask) for mask in stage_masks]
    scenarios += [recorded_only(model, workers=~mask) for mask in stage_masks]
    # One call, because the scenarios share the walk over the graph.
    step_seconds_of = step_seconds(model, scenarios)
    seconds, ideal = step_seconds_of[:2]
    first_stage = 2 + len(reported)
    by_stage, without = np.split(step_seconds_of[first_stage:], 2)
    by_replica = _replay_replicas(model)
    slowdown = _worker_slowdown(model, by_replica, by_stage, ideal)
    return WhatIf(
        model=model,
        clocks=clocks,
        recorded_seconds=grid.end.max(axis=(0, 1)).astype(np.float64),
        seconds=seconds,
        ideal_seconds=ideal,
        by_type=dict(zip(reported, step_seconds_of[2:first_stage], strict=True)),
        by_replica=by_replica,
        by_stage=by_stage,
        worker_slowdown=slowdown,
        worst=explain(model, _worst(grid.rank, slowdown), seconds, ideal),
        stages=tuple(
            _explanation(model, mask, (seconds, ideal, without[stage], by_stage[stage]))
            for stage, mask in enumerate(stage_masks)
        ),
        factors=measure_factors(model, seconds, ideal),
    )


def _make_one_clock(trace: OperationTrace) -> tuple[Model, Clocks]:
    """The trace on one clock; as recorded where a correction would make a transfer negative."""
    recorded = lay_out(trace)
    grid, clocks = align_clocks(recorded)
    model = make_model(grid, trace.layout)
    if model.negative_transfers and not np.array_equal(grid.start, recorded.start):
        uncorrected, own_clocks = align_clocks(recorded, np.inf)
        try:
            as_recorded = make_model(uncorrected, trace.layout)
        except NoReplayError:
            return model, clocks  # by its own clocks it fits no schedule
        if as_recorded.negative_transfers < model.negative_transfers:
            return as_recorded, own_clocks
    return model, clocks


def _ratio(seconds: Matrix, reference: Matrix) -> float:
    """Mean step over mean reference step, both in seconds [steps]."""
    return float(seconds.mean() / reference.mean())


def _scenarios_by_type(model: Model) -> tuple[tuple[str, ...], list[Scenario]]:
    """Names of the reported types; scenarios: all as recorded, none, and each type alone."""
    grid = model.grid
    types = [grid.types[number] for number in np.unique(grid.type_of)]
    reported_as = {name: _REPORTED_AS.get(name, name) for name in types}
    reported = tuple(dict.fromkeys(reported_as.values()))
    scenarios = [recorded_only(model), recorded_only(model, ops=np.zeros(len(model.ideal), bool))]
    return reported, scenarios + [
        recorded_only(model, ops=grid.select_type(*(t for t in types if reported_as[t] == name)))
        for name in reported
    ]


def _replay_replicas(model: Model) -> Matrix:
    """Duration of each step with all ideal but one replica: seconds, [replicas, steps]."""
    stages, shards, replicas = model.grid.rank.shape
    all_ranks = np.ones((replicas, stages * shards), bool)
    return step_seconds_of_one(model, np.arange(replicas), all_ranks)


def _worker_slowdown(model: Model, by_replica: Matrix, by_stage: Matrix, ideal: Matrix) -> Matrix:
    """Slowdown by each worker: ratio, [stages, shards, replicas].

    S_w = min(S_dp(w), S_pp(w)), the paper's approximation: replicas plus stages are replayed, not
    replicas times stages.
    """
    of_replica = by_replica.mean(axis=1) / ideal.mean()
    of_stage = by_stage.mean(axis=1) / ideal.mean()
    smaller = np.minimum(of_stage[:, None, None], of_replica[None, None, :])
    return np.broadcast_to(smaller, model.grid.rank.shape)


def _worst(rank: Integers, slowdown: Matrix) -> Flags:
    """The worst 3 %, at least one, of equals the lowest rank: [stages, shards, replicas]."""
    count = -(-rank.size * int(WORST_SHARE * 100) // 100)
    order = np.lexsort((rank.ravel(), -slowdown.ravel()))
    mask = np.zeros(rank.size, bool)
    mask[order[:count]] = True
    return mask.reshape(rank.shape)


def explain(model: Model, mask: Flags, seconds: Matrix, ideal: Matrix) -> Explanation:
    """Replays without some workers' slowness, and with theirs only.

    The mask is [stages, shards, replicas]; steps with all as recorded and ideal: seconds, [steps].
    """
    scenarios = [recorded_only(model, workers=~mask), recorded_only(model, workers=mask)]
    return _explanation(model, mask, (seconds, ideal, *step_seconds(model, scenarios)))


def _explanation(model: Model, mask: Flags, replays: tuple[Matrix, ...]) -> Explanation:
    """Sums up four replays [steps]: recorded, ideal, without the workers, with only them."""
    recorded, ideal, without, only = (float(seconds.mean()) for seconds in replays)
    lost = recorded - ideal
    return Explanation(
        mask=mask,
        ranks=tuple(np.sort(model.grid.rank[mask]).tolist()),
        seconds=recorded,
        without_seconds=without,
        only_seconds=only,
        removed=(recorded - without) / lost if lost > 0 else None,
        added=(only - ideal) / lost if lost > 0 else None,
        lost_by_step=np.maximum(replays[0] - replays[2], 0.0),
    )
