"""The JSON payload of a replay: ratios, seconds per step, and what a repair would save."""

from typing import Any, Protocol

from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.whatif.analysis import Explanation, WhatIf
from lockstep_reports.whatif.replayed import Replayed

_SECONDS_PER_HOUR = 3600.0
_MAX_REPLICAS_BY_STEP = 256
_MAX_NAMED_RANKS = 8


class Prices(Protocol):
    """The figures that a repair's gain is computed with."""

    @property
    def world_size(self) -> int:
        """Ranks of the whole job."""

    @property
    def price_per_gpu_hour(self) -> float | None:
        """Price of one GPU for an hour, in any currency; None where it is unknown."""


def what_if_json(replayed: Replayed, prices: Prices) -> dict[str, Any] | None:
    """The answers by name; None when the trace could not be replayed.

    Slowdowns are ratios to the ideal step; keys are names, ranks, stages and steps as text.
    """
    what_if = replayed.what_if
    if what_if is None:
        return None
    grid = what_if.model.grid
    ideal = what_if.ideal_seconds
    steps = [str(step) for step in grid.steps.tolist()]
    ranks, slowdowns = grid.rank.ravel().tolist(), what_if.worker_slowdown.ravel().tolist()
    return {
        **_totals(what_if),
        "by_op_type": _ratios(what_if.by_type, ideal),
        "by_worker": {
            str(rank): value for rank, value in sorted(zip(ranks, slowdowns, strict=True))
        },
        "by_replica": _ratios(_numbered(what_if.by_replica, grid.replicas), ideal),
        "by_stage": _ratios(_numbered(what_if.by_stage), ideal),
        "by_step": _by_step(what_if, steps),
        "by_op_type_per_step": _per_step(what_if.by_type, ideal, steps),
        "by_replica_per_step": _per_step(
            _numbered(what_if.by_replica[:_MAX_REPLICAS_BY_STEP], grid.replicas), ideal, steps
        ),
        "by_stage_per_step": _per_step(_numbered(what_if.by_stage), ideal, steps),
        "worst_workers": _explained(what_if, what_if.worst, prices),
        "stages": {
            str(stage): _explained(what_if, explanation, prices)
            for stage, explanation in enumerate(what_if.stages)
        },
        "micro_batch_correlation": what_if.factors.correlation,
        "micro_batch_spread_ratio": what_if.factors.spread,
        "levelled_batches_removed_ratio": what_if.factors.batches,
        "levelled_stages_removed_ratio": what_if.factors.stages,
        "levelled_ranks_removed_ratio": what_if.factors.ranks,
        "negative_transfers": what_if.model.negative_transfers,
        "worst_negative_seconds": what_if.model.worst_negative_seconds,
        "notes": list(grid.notes),
    }


def _totals(what_if: WhatIf) -> dict[str, float | None]:
    """Figures of the trace as one: ratios, and mean seconds per step."""
    return {
        "slowdown": what_if.slowdown,
        "waste_ratio": what_if.waste_ratio,
        "launch_slowdown": what_if.launch_slowdown,
        "simulation_error_ratio": what_if.simulation_error_ratio,
        "m_w": what_if.m_w,
        "m_s": what_if.m_s,
        "seconds": float(what_if.seconds.mean()),
        "ideal_seconds": float(what_if.ideal_seconds.mean()),
    }


def _by_step(what_if: WhatIf, steps: list[str]) -> dict[str, dict[str, float]]:
    """Durations and slowdowns of each step."""
    matrices = (what_if.recorded_seconds, what_if.seconds, what_if.ideal_seconds)
    columns = (values.tolist() for values in matrices)
    return {
        step: {
            "recorded_seconds": recorded,
            "seconds": seconds,
            "ideal_seconds": ideal,
            "slowdown": seconds / ideal,
            "launch_slowdown": recorded / seconds,
        }
        for step, recorded, seconds, ideal in zip(steps, *columns, strict=True)
    }


def repaired(what_if: WhatIf, ranks: list[int]) -> str:
    """What a repair would replace: a stage, or ranks by number."""
    rank = what_if.model.grid.rank
    for stage in range(len(rank)):
        if len(rank) > 1 and sorted(rank[stage].ravel().tolist()) == ranks:
            return f"stage {stage}"
    more = f", ... ({len(ranks):,} ranks)" if len(ranks) > _MAX_NAMED_RANKS else ""
    return f"rank {', '.join(map(str, ranks[:_MAX_NAMED_RANKS]))}{more}"


def _numbered(values: Matrix, numbers: Integers | None = None) -> dict[str, Matrix]:
    """Rows [n, steps] by their numbers as text; numbers None counts from 0."""
    keys = range(len(values)) if numbers is None else numbers[: len(values)].tolist()
    return {str(number): row for number, row in zip(keys, values, strict=True)}


def _ratios(seconds: dict[str, Matrix], ideal: Matrix) -> dict[str, float]:
    """Slowdowns by name; all matrices are seconds [steps]."""
    mean = ideal.mean()
    return {name: float(values.mean() / mean) for name, values in seconds.items()}


def _per_step(
    seconds: dict[str, Matrix], ideal: Matrix, steps: list[str]
) -> dict[str, dict[str, float]]:
    """Slowdowns by step, then by name."""
    ratios = {name: (values / ideal).tolist() for name, values in seconds.items()}
    return {
        step: {name: values[column] for name, values in ratios.items()}
        for column, step in enumerate(steps)
    }


def _explained(what_if: WhatIf, explanation: Explanation, prices: Prices) -> dict[str, Any]:
    """What some workers cost, and what their repair would save."""
    saved = explanation.seconds - explanation.without_seconds
    saved_in_all = saved * len(what_if.seconds)
    gpu_seconds = saved_in_all * prices.world_size
    price = prices.price_per_gpu_hour
    return {
        "ranks": list(explanation.ranks),
        "removed_ratio": explanation.removed,
        "added_ratio": explanation.added,
        "seconds_without": explanation.without_seconds,
        "seconds_alone": explanation.only_seconds,
        "saved_seconds_per_step": saved,
        "saved_step_ratio": saved / explanation.seconds if explanation.seconds > 0 else None,
        "saved_seconds": saved_in_all,
        "saved_gpu_seconds": gpu_seconds,
        "saved_money": None if price is None else gpu_seconds * price / _SECONDS_PER_HOUR,
    }
