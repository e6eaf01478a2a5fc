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

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.objectives.limits import Limit
from lockstep_alerts.objectives.objective import Objective
from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.ledger import JOB_CLASS, SLO, SLO_COUNTS_SECONDS, WINDOW
from lockstep_catalogue.promql import Matcher, eq, names, select
from lockstep_catalogue.recorded import BAD_EVENTS, TOTAL_EVENTS
from lockstep_catalogue.windows import ScrapeWindows

_CLASS_LABELS = (CLUSTER, JOB_CLASS)
_CLASS_JOIN = f"on ({names(*_CLASS_LABELS)})"


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
    lines = [f"{bad} > {_CLASS_JOIN} group_left () {by_chance}"]
    if limit.burn_rate is not None:
        burnt = f"{limit.burn_rate * bad_ratio:.6g} * {total}"
        lines.append(f"and {_CLASS_JOIN} ({bad} > {_CLASS_JOIN} ({burnt}))")
    if limit.recent is not None:
        recent = select(BAD_EVENTS, *here, eq(WINDOW, limit.recent))
        lines.append(f"and {_CLASS_JOIN} ({recent} > 0)")
    return "\n".join(lines)


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
