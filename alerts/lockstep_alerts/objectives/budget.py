"""More bad events in the period than the objective allows: the error budget is spent."""

import math
from dataclasses import dataclass

from lockstep_alerts.conditions.condition import Case, Condition
from lockstep_alerts.conditions.synthetic import Samples, Timing
from lockstep_alerts.objectives.counts import bad_by_window, counts
from lockstep_alerts.objectives.objective import Objective
from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.ledger import JOB_CLASS, SLO, SLO_COUNTS_SECONDS
from lockstep_catalogue.promql import by, names, select
from lockstep_catalogue.recorded import BAD_EVENTS, GOAL, PERIOD, PERIOD_BURN_RATE
from lockstep_catalogue.windows import ScrapeWindows

_EVENTS = 200  # in 28 days: 50 a week
# Below so many bad events a budget of a small cluster is spent by chance alone.
_LEAST_BAD = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetSpent(Condition):
    """The budget of any objective is spent."""

    DETECTED_AFTER = math.ceil(SLO_COUNTS_SECONDS)

    objectives: tuple[Objective, ...]

    def expression(self, windows: ScrapeWindows) -> str:
        """Times that the budget is spent, of the cluster and of classes that are promised of."""
        key = (CLUSTER, JOB_CLASS, SLO)
        spent = by("max", f"{select(PERIOD_BURN_RATE)} > 1", *key)
        several = f"and on ({names(*key)}) {select(BAD_EVENTS)} >= {_LEAST_BAD}"
        return f"{spent}\n{several}\nand on ({names(JOB_CLASS, SLO)}) {select(GOAL)}"

    def cases(self, timing: Timing) -> list[Case]:
        first = self.objectives[0]
        allowed = math.floor(first.bad_ratio * _EVENTS + 1e-9)

        def spent(total: int, bad: int) -> list[Samples]:
            return counts(timing, first.slo, total, bad_by_window(PERIOD, bad, min(bad, 1)))

        labels = {CLUSTER.name: "c1", SLO.name: first.slo}
        return [
            Case("one event above the budget", spent(_EVENTS, allowed + 1), labels),
            Case("all of the budget and no more", spent(_EVENTS, allowed)),
            Case("nothing ran", spent(0, 0)),
        ]
