"""Too many bad events in a window: more than chance makes of the objective, and a fast burn.

A burn rate alone fits a service of thousands of requests. A cluster finishes 50 jobs a week: at an
objective of 95 % two failures in six hours burn 22 times too fast, and chance brings them about
nine times a month. So two limits hold at once.

Null hypothesis: bad events are a Poisson process that uses up the budget exactly, with a mean of
``mu`` among the events that ended in the window. The first limit is ``mu + sigmas * sqrt(k * mu)
+ k * spare``, where one incident makes ``k`` bad events on average (``cluster_size``), so that
chance is counted in incidents. The second limit is ``burn_rate * mu``. It matters where events are
many and a small excess is certain, but small. Together: docs/decisions/0022-event-objectives.md,
``make bench-alerts``.
"""

import math
from dataclasses import dataclass

from lockstep_alerts.conditions.condition import Case, Condition
from lockstep_alerts.conditions.synthetic import Samples, Timing
from lockstep_alerts.objectives.counter_cases import counter_cases
from lockstep_alerts.objectives.counts import bad_by_window, counts, labels_of
from lockstep_alerts.objectives.limits import Limit
from lockstep_alerts.objectives.objective import Objective
from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.ledger import EVENT_SLOS, JOB_CLASS, SLO, SLO_COUNTS_SECONDS, WINDOW
from lockstep_catalogue.promql import Matcher, eq, names, select
from lockstep_catalogue.recorded import BAD_EVENTS, TOTAL_EVENTS
from lockstep_catalogue.windows import ScrapeWindows

_OF_CLASS = (CLUSTER, JOB_CLASS)
_ON_CLASS = f"on ({names(*_OF_CLASS)})"
_FEW_EVENTS, _MANY_EVENTS = 200, 40_000  # in 28 days: 50 and 10,000 a week


def _expression(limit: Limit, objective: Objective, job_class: str, bad_ratio: float) -> str:
    """PromQL of a limit; its value is the number of bad events in the window."""
    # The name of an objective on a counter is the spec's own.
    here = (Matcher(SLO, "=", objective.slo), eq(JOB_CLASS, job_class))
    # Of the events that ended in the window: jobs end by day, and sweeps all at once.
    total = select(TOTAL_EVENTS, *here, eq(WINDOW, limit.window))
    bad = select(BAD_EVENTS, *here, eq(WINDOW, limit.window))
    mean = f"{bad_ratio:.6g} * {total}"
    deviation = f"sqrt({limit.cluster_size * bad_ratio:.6g} * {total})"
    by_chance = f"({mean} + {limit.sigmas:g} * {deviation} + {limit.spares:g})"
    # ``group_left`` keeps the labels of the left side, of which one is the window.
    lines = [f"{bad} > {_ON_CLASS} group_left () {by_chance}"]
    if limit.burn_rate is not None:
        burnt = f"{limit.burn_rate * bad_ratio:.6g} * {total}"
        lines.append(f"and {_ON_CLASS} ({bad} > {_ON_CLASS} ({burnt}))")
    if limit.recent is not None:
        recent = select(BAD_EVENTS, *here, eq(WINDOW, limit.recent))
        lines.append(f"and {_ON_CLASS} ({recent} > 0)")
    return "\n".join(lines)


def _least(limit: Limit, bad_ratio: float, total: int) -> int:
    """Of a case with so many events in the period."""
    return limit.least_bad(bad_ratio, round(limit.events(total)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Burn(Condition):
    """The budget of an objective is spent too fast by one of these limits."""

    DETECTED_AFTER = math.ceil(SLO_COUNTS_SECONDS)

    objective: Objective
    limits: tuple[Limit, ...]

    def expression(self, windows: ScrapeWindows) -> str:
        """Bad events in the window that a label names."""
        return "\nor\n".join(
            _expression(limit, self.objective, job_class, 1 - good_ratio)
            for job_class, good_ratio in self.objective.goals.items()
            for limit in self.limits
        )

    def cases(self, timing: Timing) -> list[Case]:
        if self.objective.counter is not None:
            return counter_cases(self.objective, self.limits[0])
        first, bad_ratio, slo = self.limits[0], self.objective.bad_ratio, self.objective.slo

        def job(total: int, limit: Limit, fewer: int = 0, num_recent: int = 1) -> list[Samples]:
            at_limit = _least(limit, bad_ratio, total) - fewer
            bad = bad_by_window(limit.window, at_limit, num_recent)
            return counts(timing, slo, total, bad)

        at_limits = [
            Case(f"{each.window} at its limit", job(_FEW_EVENTS, each), labels_of(slo, each.window))
            for each in self.limits
        ]
        one_fewer = Case("one event fewer", job(_FEW_EVENTS, first, 1))
        if slo != EVENT_SLOS[0]:
            # Objectives differ in their figures only, and each case takes promtool a second.
            return [at_limits[0], one_fewer]
        cases = [
            *at_limits,
            one_fewer,
            Case("many events, one fewer", job(_MANY_EVENTS, first, 1)),
            Case("nothing ran", counts(timing, slo, 0, {})),
        ]
        if first.recent is not None:
            old = job(_FEW_EVENTS, first, num_recent=0)
            cases.append(Case("the last event is long ago", old))
        return cases
