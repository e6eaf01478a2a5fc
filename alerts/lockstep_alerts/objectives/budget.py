"""More bad events in 28 days than the objective allows: the error budget is spent."""

import math
from dataclasses import dataclass

from lockstep_alerts.conditions.condition import Case, Timing
from lockstep_alerts.objectives.counts import bad_by_window, counts, labels_of
from lockstep_alerts.objectives.objective import PERIOD, Objective
from lockstep_catalogue.ledger import SLO, SLO_COUNTS_SECONDS, WINDOW
from lockstep_catalogue.promql import eq, select
from lockstep_catalogue.recorded_objectives import BAD_EVENTS, TOTAL_EVENTS
from lockstep_catalogue.windows import ScrapeWindows

_EVENTS = 200  # in 28 days: 50 a week
# Below so many bad events a budget of a small cluster is spent by chance alone.
_LEAST_BAD = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetSpent:
    """The budget of any objective is spent."""

    objectives: tuple[Objective, ...]

    def expression(self, windows: ScrapeWindows) -> str:
        """Times that the budget is spent."""
        del windows  # the ledger counts the events, and not the scrapes
        return "\nor\n".join(map(self._of_objective, self.objectives))

    def _of_objective(self, objective: Objective) -> str:
        here = (eq(SLO, objective.slo), eq(WINDOW, PERIOD))
        bad, total = select(BAD_EVENTS, *here), select(TOTAL_EVENTS, *here)
        return f"({bad} >= {_LEAST_BAD}) / ({objective.bad_ratio:.6g} * {total}) > 1"

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """Time between two counts of the ledger."""
        del windows
        return math.ceil(SLO_COUNTS_SECONDS)

    def evidence(self) -> str:
        """Nothing: the labels and the value say it."""
        return ""

    def cases(self, timing: Timing) -> list[Case]:
        """The first objective a little above its budget, at it, and where nothing ran."""
        first = self.objectives[0]
        allowed = math.floor(first.bad_ratio * _EVENTS + 1e-9)
        outlines = [
            ("one event above the budget", _EVENTS, allowed + 1, True),
            ("all of the budget and no more", _EVENTS, allowed, False),
            ("nothing ran", 0, 0, False),
        ]
        return [
            Case(
                name=name,
                series=counts(timing, first.slo, total, bad_by_window(PERIOD, bad, min(bad, 1))),
                at_seconds=timing.fires_by_seconds,
                fires=labels_of(first.slo, PERIOD) if fires else None,
            )
            for name, total, bad, fires in outlines
        ]
