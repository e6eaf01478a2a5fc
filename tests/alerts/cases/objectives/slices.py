from lockstep_alerts.objectives.slices import SliceWorse
from lockstep_catalogue import training

from ..case import Case, proves
from ..synthetic import (
    HEALTHY,
    JOB,
    ONE_NODE,
    Regime,
    Samples,
    Stretch,
    Timing,
    growing,
    samples,
    steady,
    stepping,
)

_HEALTHY_SECONDS = 45 * 60
"""Of a case: half an hour of slices makes a baseline, and the first five minutes are no slice."""


_TOKENS_PER_STEP, _BUS_RATE = 1000, 1e9
_STEP_SECONDS = sum(HEALTHY.values())


@proves(SliceWorse)
def slice_worse(condition: SliceWorse, timing: Timing) -> list[Case]:
    slow, nearly = condition.min_ratio * 0.93, min(1.0, condition.min_ratio * 1.05)
    outlines = (
        ("it becomes worse than the limit", slow, True),
        ("it becomes a little worse", nearly, False),
    )
    return [
        Case(
            name,
            _job(condition.objective.slo, ratio, timing.fires_within_seconds),
            JOB if fires else None,
            _HEALTHY_SECONDS + timing.fires_within_seconds,
        )
        for name, ratio, fires in outlines
    ]


def _job(slo: str, ratio: float, after_seconds: int) -> list[Samples]:
    """A job that is healthy for a time, and then so good against it; only sync grows."""
    share = HEALTHY["sync"] / _STEP_SECONDS / ratio
    more = {
        # The share of sync in a step that grows by it: (sync + more) / (step + more).
        "gradient_sync": (share * _STEP_SECONDS - HEALTHY["sync"]) / (1 - share),
    }.get(slo, _STEP_SECONDS / ratio - _STEP_SECONDS)
    worse = {**HEALTHY, "sync": HEALTHY["sync"] + more}
    # One rank: a promtool case over an hour costs by the sample.
    regimes = (Regime(_HEALTHY_SECONDS, (HEALTHY,)), Regime(after_seconds, (worse,)))
    tokens = [Stretch(regime.seconds, _TOKENS_PER_STEP / regime.step_seconds) for regime in regimes]
    node = {**ONE_NODE[0].labels, "node": "n1"}
    bus = growing(
        Stretch(_HEALTHY_SECONDS, 0),
        Stretch(1, _BUS_RATE * (ratio - 1)),
        Stretch(after_seconds, 0),
        start=_BUS_RATE,
    )
    return [
        samples(training.RANK_INFO, steady(1, sum(r.seconds for r in regimes)), rank="0", **node),
        *stepping(*regimes),
        samples(training.TOKENS, growing(*tokens), **node),
        samples(training.BUS_RATE, bus, **node, kind="all_reduce"),
    ]
