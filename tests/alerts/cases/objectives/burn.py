from lockstep_alerts.objectives.burn import Burn
from lockstep_alerts.objectives.limits import Limit
from lockstep_catalogue.ledger import EVENT_SLOS

from ..case import Case, proves
from ..synthetic import Samples, Timing
from .counter_cases import counter_cases
from .counts import bad_by_window, counts, labels_of

_FEW_EVENTS, _MANY_EVENTS = 200, 40_000  # in 28 days: 50 and 10,000 a week


def _least(limit: Limit, bad_ratio: float, total: int) -> int:
    """Of a case with so many events in the period."""
    return limit.least_bad(bad_ratio, round(limit.events(total)))


@proves(Burn)
def burn(condition: Burn, timing: Timing) -> list[Case]:
    if condition.objective.counter is not None:
        return counter_cases(condition.objective, condition.limits[0])
    first, bad_ratio, slo = (
        condition.limits[0],
        condition.objective.bad_ratio,
        condition.objective.slo,
    )

    def job(total: int, limit: Limit, fewer: int = 0, num_recent: int = 1) -> list[Samples]:
        at_limit = _least(limit, bad_ratio, total) - fewer
        bad = bad_by_window(limit.window, at_limit, num_recent)
        return counts(timing, slo, total, bad)

    at_limits = [
        Case(f"{each.window} at its limit", job(_FEW_EVENTS, each), labels_of(slo, each.window))
        for each in condition.limits
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
