"""More bad events in the period than the objective allows: the error budget is spent."""

import math

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.objectives.objective import Objective
from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.ledger import JOB_CLASS, SLO, SLO_COUNTS_SECONDS
from lockstep_catalogue.promql import by, names, select
from lockstep_catalogue.recorded import BAD_EVENTS, GOAL, PERIOD_BURN_RATE
from lockstep_catalogue.windows import ScrapeWindows

# Below so many bad events a budget of a small cluster is spent by chance alone.
_LEAST_BAD = 2


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
