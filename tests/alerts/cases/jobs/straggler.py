from collections.abc import Mapping

from lockstep_alerts.conditions.jobs.straggler import Straggler, StragglerNode, _Late
from lockstep_catalogue import training

from ..case import Case, proves
from ..synthetic import (
    DEVICE_CLOCK,
    HEALTHY,
    JOB,
    NUM_RANKS,
    ONE_NODE,
    STAGES,
    TWO_CLOCKS,
    TWO_NODES,
    TWO_REPLICAS,
    Placement,
    Samples,
    Stretch,
    Timing,
    healthy,
    loads,
    moving,
    present,
    ranks_late,
    samples,
    stepping,
    training_job,
)

_LATE_RANK = 2
_SLOW_NODE_RANKS = (2, 3)
_STANDSTILL_SECONDS = 120
_Extra = Mapping[int, Mapping[str, float]]
"""Seconds a step by phase that each late rank takes more."""


def _above(condition: _Late) -> Mapping[str, float]:
    return {"backward": _extra_seconds(1.05 * condition.above_ratio)}


def _below(condition: _Late) -> Mapping[str, float]:
    return {"backward": _extra_seconds(0.8 * condition.above_ratio)}


@proves(Straggler)
def straggler(condition: Straggler, timing: Timing) -> list[Case]:
    slow_rank = {**JOB, "rank": str(_LATE_RANK), "phase": "backward"}
    pause = {"checkpoint": _extra_seconds(2 * condition.above_ratio)}
    whole_node = dict.fromkeys(_SLOW_NODE_RANKS, _above(condition))
    late = {_LATE_RANK: _above(condition)}

    def job(extra: _Extra, places: tuple[Placement, ...] = ONE_NODE) -> list[Samples]:
        return _straggling(timing, extra, places)

    on_n1 = {**slow_rank, "node": "n1"}
    series = job(late)
    longer = sum(_above(condition).values()) / sum(HEALTHY.values())
    seconds = timing.fires_by_seconds
    all_of_it, half = (
        [*series, *loads(1 + share * longer, seconds, rank=_LATE_RANK)] for share in (1, 0.5)
    )
    return [
        Case("one rank late", series, on_n1),
        Case(
            "one rank of a stage late",
            job(late, TWO_REPLICAS),
            {**slow_rank, "node": "n2", "pp": "0"},
        ),
        Case("less late than that", job({_LATE_RANK: _below(condition)})),
        Case("one rank writes the checkpoint", job({_LATE_RANK: pause})),
        Case("all ranks of a node are late", job(whole_node, TWO_NODES)),
        Case("stages of one rank are uneven", job(late, STAGES)),
        Case("one rank late by devices", job(late, DEVICE_CLOCK), on_n1),
        Case("late by another clock than the others", job(late, TWO_CLOCKS)),
        Case("a slow worker of a parameter server", [*series, *_exchanges(timing, "independent")]),
        Case("late at the rounds of local SGD", [*series, *_exchanges(timing, "round")], on_n1),
        _standstill(timing),
        Case("it has more data", all_of_it, None, seconds),
        Case("more data explains half of it", half, on_n1, seconds),
    ]


@proves(StragglerNode)
def straggler_node(condition: StragglerNode, timing: Timing) -> list[Case]:
    slow_rank = {**JOB, "node": "n2", "phase": "backward"}
    whole_node = dict.fromkeys(_SLOW_NODE_RANKS, _above(condition))
    slightly = dict.fromkeys(_SLOW_NODE_RANKS, _below(condition))

    def job(extra: _Extra, places: tuple[Placement, ...] = TWO_NODES) -> list[Samples]:
        return _straggling(timing, extra, places)

    served = [*job(whole_node), *_exchanges(timing, "independent")]
    return [
        Case("all ranks of a node late", job(whole_node), slow_rank),
        Case("a node of slow workers of a parameter server", served),
        Case("all stages of a node late", job(whole_node, TWO_REPLICAS), slow_rank),
        Case("less late than that", job(slightly)),
        Case("one of its ranks late", job({_LATE_RANK: _above(condition)})),
        Case("all ranks are alike", job({})),
    ]


def _exchanges(timing: Timing, exchange: str) -> list[Samples]:
    """Ranks that take over shared parameters once a second."""
    return [
        samples(training.SYNC_ROUNDS, timing.counts(1), rank=str(rank), exchange=exchange, **JOB)
        for rank in range(NUM_RANKS)
    ]


def _extra_seconds(ratio: float) -> float:
    """Seconds a step of one rank that are this share of the step that they lengthen."""
    return sum(HEALTHY.values()) * ratio / (1 - ratio)


def _standstill(timing: Timing) -> Case:
    """One step of two minutes in which one rank stood and all others waited: no straggler."""
    seconds = timing.onset_seconds + _STANDSTILL_SECONDS + timing.fires_within_seconds
    stood = ranks_late(_STANDSTILL_SECONDS, {_LATE_RANK: {"data": float(_STANDSTILL_SECONDS)}})
    after = timing.fires_within_seconds
    # It catches up with the clock within a second.
    moves = (
        Stretch(timing.onset_seconds, 1),
        Stretch(_STANDSTILL_SECONDS, 0),
        Stretch(1, _STANDSTILL_SECONDS + 1),
        Stretch(after - 1, 1),
    )
    return Case(
        "one rank stood still for one step",
        [
            *present(seconds),
            *moving(*moves),
            *stepping(healthy(timing.onset_seconds), stood, healthy(after)),
        ],
        None,
        timing.onset_seconds + _STANDSTILL_SECONDS + 2 * timing.windows.scrape_seconds,
    )


def _straggling(timing: Timing, extra: _Extra, places: tuple[Placement, ...]) -> list[Samples]:
    """A job in which ranks spend ``extra`` seconds a step more from the onset on."""
    late = ranks_late(timing.fires_within_seconds, extra)
    return training_job(healthy(timing.onset_seconds), late, places=places)
