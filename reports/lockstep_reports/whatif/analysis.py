"""Asks a trace what slowed it down: by type of operation, worker, stage and step."""

from dataclasses import dataclass

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.recording.operations import (
    BACKWARD,
    BACKWARD_RECV,
    BACKWARD_SEND,
    FORWARD,
    FORWARD_RECV,
    FORWARD_SEND,
    OperationTrace,
)
from lockstep_reports.whatif.clocks import Clocks, align_clocks
from lockstep_reports.whatif.grid import lay_out
from lockstep_reports.whatif.scenarios import (
    Model,
    Scenarios,
    make_model,
    step_seconds,
    step_seconds_of_one,
)

WORST_SHARE = 0.03
_REPORTED_AS = {
    FORWARD_SEND: "forward-pp-comm",
    FORWARD_RECV: "forward-pp-comm",
    BACKWARD_SEND: "backward-pp-comm",
    BACKWARD_RECV: "backward-pp-comm",
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Explanation:
    """How much of the slowdown some workers explain.

    Attributes:
        seconds: mean step with all as recorded, launch delays left out.
        ideal_seconds: mean step with all ideal.
        without_seconds: mean step with these workers ideal.
        only_seconds: mean step with all others ideal.
        lost_by_step: what each step would have been shorter without their slowness [steps].
    """

    ranks: tuple[int, ...]
    seconds: float
    ideal_seconds: float
    without_seconds: float
    only_seconds: float
    lost_by_step: Matrix

    @property
    def removed(self) -> float | None:
        """Share of the slowdown that goes when these workers are ideal."""
        lost = self.seconds - self.ideal_seconds
        return (self.seconds - self.without_seconds) / lost if lost > 0 else None

    @property
    def added(self) -> float | None:
        """Share of the slowdown that these workers alone bring about."""
        lost = self.seconds - self.ideal_seconds
        return (self.only_seconds - self.ideal_seconds) / lost if lost > 0 else None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WhatIf:
    """The answers. Slowdowns are ratios to the ideal step; matrices are [... x steps].

    Attributes:
        recorded_seconds: duration of each step as recorded.
        seconds: the same replayed, launch delays left out.
        ideal_seconds: the same with every operation ideal.
        by_type: step seconds with all ideal but one type, by its name.
        by_replica: the same for one replica [replicas x steps].
        by_stage: the same for one stage [stages x steps].
        worker_slowdown: the smaller of a worker's replica's and stage's [stages x shards x
            replicas].
        worst: the worst 3 % of the workers together.
        stages: each stage, as if it were repaired.
        batch_correlation: of forward and backward durations of a micro-batch, each relative to
            its stage's mean; None when it cannot be told.
        batch_spread: by how much micro-batches differ, relative to the mean.
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
    batch_correlation: float | None
    batch_spread: float | None

    @property
    def slowdown(self) -> float:
        """Mean step over mean ideal step."""
        return _ratio(self.seconds, self.ideal_seconds)

    @property
    def waste_ratio(self) -> float:
        """Share of the time that would not have been needed."""
        return 1 - 1 / self.slowdown

    @property
    def launch_slowdown(self) -> float:
        """Recorded mean step over replayed one: what happened outside the recorded operations."""
        return _ratio(self.recorded_seconds, self.seconds)

    @property
    def simulation_error_ratio(self) -> float:
        """How far the replay is from the record, relative to the record."""
        return abs(1 / self.launch_slowdown - 1)

    @property
    def m_w(self) -> float | None:
        """Share of the slowdown that the worst workers explain."""
        return self.worst.removed

    @property
    def m_s(self) -> float | None:
        """Share of the slowdown that the last stage explains; None without a pipeline."""
        return self.stages[-1].removed if len(self.stages) > 1 else None


def analyse(trace: OperationTrace) -> WhatIf:
    """Replays a trace with every question's durations.

    Raises:
        NoReplayError: it cannot be replayed; the text says why.
    """
    grid, clocks = align_clocks(lay_out(trace))
    model = make_model(grid, trace.layout)
    types = {name: _REPORTED_AS.get(name, name) for name in _types(model)}
    shown = tuple(dict.fromkeys(types.values()))
    asked = [_only(model), _only(model, ops=np.zeros(len(model.ideal), bool))]
    asked += [
        _only(model, ops=grid.of_type(*(name for name in types if types[name] == wanted)))
        for wanted in shown
    ]
    stage_masks = [_stage_mask(model, stage) for stage in range(grid.stages)]
    asked += [_only(model, workers=mask) for mask in stage_masks]
    asked += [_only(model, workers=~mask) for mask in stage_masks]
    told = _ask(model, asked)
    seconds, ideal = told[:2]
    by_stage, without = np.split(told[2 + len(shown) :], 2)
    by_replica = _by_replica(model)
    slowdown = _worker_slowdown(model, by_replica, by_stage, ideal)
    return WhatIf(
        model=model,
        clocks=clocks,
        recorded_seconds=grid.end.max(axis=(0, 1)).astype(np.float64),
        seconds=seconds,
        ideal_seconds=ideal,
        by_type=dict(zip(shown, told[2 : 2 + len(shown)], strict=True)),
        by_replica=by_replica,
        by_stage=by_stage,
        worker_slowdown=slowdown,
        worst=explain(model, _worst(grid.rank, slowdown), seconds, ideal),
        stages=tuple(
            _explanation(model, mask, (seconds, ideal, without[at], by_stage[at]))
            for at, mask in enumerate(stage_masks)
        ),
        **_batches(model),
    )


def _ratio(one: Matrix, other: Matrix) -> float:
    return float(one.mean() / other.mean())


def _types(model: Model) -> list[str]:
    used = np.unique(model.grid.type_of)
    return [model.grid.types[number] for number in used]


def _stage_mask(model: Model, stage: int) -> Flags:
    mask = np.zeros(model.grid.rank.shape, bool)
    mask[stage] = True
    return mask


def _only(model: Model, *, ops: Flags | None = None, workers: Flags | None = None) -> Scenarios:
    """One scenario: some operations, or some workers [stages x shards x replicas], as recorded."""
    rank = model.grid.rank
    ops = np.ones(len(model.ideal), bool) if ops is None else ops
    workers = np.ones(rank.shape, bool) if workers is None else workers
    flat = workers.reshape(1, -1, rank.shape[2])
    return Scenarios(ops=ops[None], workers=flat)


def _ask(model: Model, asked: list[Scenarios]) -> Matrix:
    return step_seconds(
        model,
        Scenarios(
            ops=np.concatenate([one.ops for one in asked]),
            workers=np.concatenate([one.workers for one in asked]),
        ),
    )


def _by_replica(model: Model) -> Matrix:
    stages, shards, replicas = model.grid.rank.shape
    all_ranks = np.ones((replicas, stages * shards), bool)
    return step_seconds_of_one(model, np.arange(replicas), all_ranks)


def _worker_slowdown(model: Model, by_replica: Matrix, by_stage: Matrix, ideal: Matrix) -> Matrix:
    of_replica = by_replica.mean(axis=1) / ideal.mean()
    of_stage = by_stage.mean(axis=1) / ideal.mean()
    both = np.minimum(of_stage[:, None, None], of_replica[None, None, :])
    return np.broadcast_to(both, model.grid.rank.shape)


def _worst(rank: Integers, slowdown: Matrix) -> Flags:
    """The worst 3 % of the workers, at least one; of equals the lowest rank."""
    count = -(-rank.size * int(WORST_SHARE * 100) // 100)
    order = np.lexsort((rank.ravel(), -slowdown.ravel()))
    mask = np.zeros(rank.size, bool)
    mask[order[:count]] = True
    return mask.reshape(rank.shape)


def explain(model: Model, mask: Flags, seconds: Matrix, ideal: Matrix) -> Explanation:
    """Replays without some workers' slowness, and with theirs alone.

    Args:
        model: the trace.
        mask: the workers [stages x shards x replicas].
        seconds: duration of each step with all as recorded.
        ideal: the same with all ideal.
    """
    without, alone = _ask(model, [_only(model, workers=~mask), _only(model, workers=mask)])
    return _explanation(model, mask, (seconds, ideal, without, alone))


def _explanation(model: Model, mask: Flags, told: tuple[Matrix, ...]) -> Explanation:
    seconds, ideal, without, alone = told
    return Explanation(
        ranks=tuple(int(rank) for rank in np.sort(model.grid.rank[mask])),
        seconds=float(seconds.mean()),
        ideal_seconds=float(ideal.mean()),
        without_seconds=float(without.mean()),
        only_seconds=float(alone.mean()),
        lost_by_step=np.maximum(seconds - without, 0.0),
    )


def _batches(model: Model) -> dict[str, float | None]:
    """Whether long micro-batches are long forward and backward: uneven sequence lengths."""
    grid, relative = model.grid, []
    for name in (FORWARD, BACKWARD):
        ops = np.flatnonzero(grid.of_type(name))
        keys = (grid.batch[ops], grid.chunk[ops], grid.stage[ops], grid.shard[ops])
        ops = ops[np.lexsort(keys)]
        values = model.recorded[ops]
        places = grid.stage[ops] * (int(grid.chunk.max()) + 2) + grid.chunk[ops]
        for place in np.unique(places):
            values[places == place] /= values[places == place].mean() or 1.0
        relative.append(values.ravel())
    forward, backward = relative
    if len(forward) != len(backward) or not len(forward) or not (forward.std() and backward.std()):
        return {"batch_correlation": None, "batch_spread": None}
    return {
        "batch_correlation": nan_stats.number(np.corrcoef(forward, backward)[0, 1]),
        "batch_spread": float(forward.std()),
    }
