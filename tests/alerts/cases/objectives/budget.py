import math

from lockstep_alerts.objectives.budget import BudgetSpent
from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.ledger import SLO
from lockstep_catalogue.recorded import PERIOD

from ..case import Case, proves
from ..synthetic import Samples, Timing
from .counts import bad_by_window, counts

_EVENTS = 200  # in 28 days: 50 a week


@proves(BudgetSpent)
def budget_spent(condition: BudgetSpent, timing: Timing) -> list[Case]:
    first = condition.objectives[0]
    allowed = math.floor(first.bad_ratio * _EVENTS + 1e-9)

    def spent(total: int, bad: int) -> list[Samples]:
        return counts(timing, first.slo, total, bad_by_window(PERIOD, bad, min(bad, 1)))

    labels = {CLUSTER.name: "c1", SLO.name: first.slo}
    return [
        Case("one event above the budget", spent(_EVENTS, allowed + 1), labels),
        Case("all of the budget and no more", spent(_EVENTS, allowed)),
        Case("nothing ran", spent(0, 0)),
    ]
