"""Computes what slowed a trace down: by type of operation, worker, stage and step.

Definitions of slowdown, M_W and M_S are those of Lin et al., OSDI 2025, and so is the share of
worst workers. T is the mean replayed step with all durations as recorded, T_ideal that with every
duration replaced by its type's ideal; an index says what stays as recorded, or what is removed.
"""

from dataclasses import dataclass

import numpy as np

from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.recording import operations as optype
from lockstep_reports.recording.operations import OperationTrace
from lockstep_reports.whatif.clocks import Clocks, align_clocks
from lockstep_reports.whatif.factors import Factors, measure_factors
from lockstep_reports.whatif.grid import NoReplayError, lay_out
from lockstep_reports.whatif.scenarios import (
    Model,
    Scenario,
    make_model,
    recorded_only,
    step_seconds,
    step_seconds_of_one,
)

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
    """The answers. Slowdowns are ratios to the ideal step; step matrices are in seconds.

    Attributes:
        recorded_seconds: duration of each step as recorded: seconds, [steps].
        seconds: the same replayed, launch delays left out: seconds, [steps].
        ideal_seconds: the same with every operation ideal: seconds, [steps].
        by_type: duration of each step with all ideal but one type, by its name: seconds, [steps].
        by_replica: the same with all ideal but one replica: seconds, [replicas, steps].
        by_stage: the same with all ideal but one stage: seconds, [stages, steps].
        worker_slowdown: the smaller slowdown of a worker's replica and of its stage: ratio,
            [stages, shards, replicas].
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
    """Replays a trace with every question's durations.

    Raises:
        NoReplayError: it cannot be replayed; the text says why.
    """
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

    Args:
        model: the trace.
        mask: the workers [stages, shards, replicas].
        seconds: duration of each step with all as recorded: seconds, [steps].
        ideal: the same with all ideal: seconds, [steps].
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
