"""A job that has become worse than it was: its slices are held against its own best hour."""

from dataclasses import dataclass

from lockstep_alerts.conditions.condition import Case, Condition
from lockstep_alerts.conditions.joins import JOB_LABELS
from lockstep_alerts.conditions.synthetic import (
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
from lockstep_alerts.objectives.objective import Objective
from lockstep_alerts.rules.slices import SLICE_SECONDS
from lockstep_catalogue import training
from lockstep_catalogue.ledger import SLO
from lockstep_catalogue.promql import by, eq, select
from lockstep_catalogue.recorded import SLICE_RATIO
from lockstep_catalogue.windows import ScrapeWindows

_HEALTHY_SECONDS = 45 * 60
"""Of a case: half an hour of slices makes a baseline, and the first five minutes are no slice."""
_TOKENS_PER_STEP, _BUS_RATE = 1000, 1e9
_STEP_SECONDS = sum(HEALTHY.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceWorse(Condition):
    """The last five minutes of a job are worse than its best hour by more than the limit."""

    DETECTED_AFTER = SLICE_SECONDS

    objective: Objective
    min_ratio: float

    def expression(self, windows: ScrapeWindows) -> str:
        """How good the job is against its best hour."""
        # Without the objective's label: it is the job's alert, and no other job's.
        ratio = by("min", select(SLICE_RATIO, eq(SLO, self.objective.slo)), *JOB_LABELS)
        return f"{ratio} < {self.min_ratio:g}"

    def cases(self, timing: Timing) -> list[Case]:
        slow, nearly = self.min_ratio * 0.93, min(1.0, self.min_ratio * 1.05)
        outlines = (
            ("it becomes worse than the limit", slow, True),
            ("it becomes a little worse", nearly, False),
        )
        return [
            Case(
                name,
                _job(self.objective.slo, ratio, timing.fires_within_seconds),
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
