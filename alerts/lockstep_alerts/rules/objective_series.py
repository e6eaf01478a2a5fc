"""PromQL of each objective: counts, budgets and burn rates.

Counts come from the ledger, which has exact ones for every window, or from slices.
"""

from lockstep_alerts.rules.parameters import Expressions
from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.ledger import (
    EVENT_SLOS,
    GPU_SECOND_SLOS,
    JOB_CLASS,
    SLO,
    SLO_EVENT,
    SLO_EVENTS,
    WINDOW,
)
from lockstep_catalogue.metric import Recorded
from lockstep_catalogue.promql import by, eq, has, names, one_of, select
from lockstep_catalogue.recorded import (
    BAD_EVENTS,
    BUDGET_REMAINING,
    CURRENT_BURN_RATE,
    ERROR_BUDGET,
    ERROR_RATIOS,
    GOAL,
    OBJECTIVE,
    PERIOD,
    PERIOD_BURN_RATE,
    PERIOD_DAYS,
    SLICE_PERIOD,
    SLICES_BAD,
    SLICES_TOTAL,
    SLO_INFO,
    SLOTH_ID,
    SLOTH_OBJECTIVE,
    SLOTH_SERVICE,
    SLOTH_SLO,
    SLOTH_SPEC,
    TIME_PERIOD,
    TOTAL_EVENTS,
)

_CURRENT_OF_EVENTS, _CURRENT_OF_GPU_SECONDS = "6h", "1h"
"""Windows of the burn rate now: the shortest that a page looks at."""

_COUNTED = (CLUSTER, JOB_CLASS, SLO, WINDOW)
_SLOTH = (SLOTH_ID, SLOTH_SERVICE, SLOTH_SLO)
_KEY = (CLUSTER, JOB_CLASS, SLO)
_ON_KEY = f"on ({names(*_KEY)})"
_NAMED = f"{_ON_KEY} group_left ({names(*_SLOTH)})"


def _counts(kind: str) -> str:
    """Of the cluster and of each class; the newest count where two targets are one ledger."""
    all_of_it = eq(SLO_EVENT, kind)
    exact = by("max", select(SLO_EVENTS, all_of_it), *_COUNTED)
    of_cluster = by("sum", exact, CLUSTER, SLO, WINDOW)
    of_classes = by("max", select(SLO_EVENTS, all_of_it, has(JOB_CLASS)), *_COUNTED)
    return f"{of_cluster}\nor\n{of_classes}"


_RECENT = "2m"  # slices are evaluated once a minute, in another file


def _slices(counted: Recorded) -> str:
    over = f"sum_over_time({select(counted)}[{SLICE_PERIOD}])"
    return f'label_replace({over}, "{WINDOW.name}", "{SLICE_PERIOD}", "", "")'


def _bad() -> str:
    good = _counts("good")
    exact = select(TOTAL_EVENTS, one_of(SLO, *EVENT_SLOS, *GPU_SECOND_SLOS))
    return f"{exact} - on ({names(*_COUNTED)}) ({good})\nor\n{_slices(SLICES_BAD)}"


def _sum_over_period(counted: Recorded) -> str:
    """Counts of an objective over its own period, without the label of the window."""
    long, short = (by("sum", select(counted, eq(WINDOW, w)), *_KEY) for w in PERIOD_DAYS)
    return f"({long} or {short})"


def _objective() -> str:
    counted = f"0 * {_sum_over_period(TOTAL_EVENTS)}"
    of_class = f"{counted} + on ({names(JOB_CLASS, SLO)}) group_left () {select(GOAL)}"
    of_all = f"{counted} + on ({SLO.name}) group_left () {select(GOAL, eq(JOB_CLASS, ''))}"
    slo = f'label_join({{}}, "{SLOTH_SLO.name}", "-", "{SLO.name}", "{JOB_CLASS.name}")'
    named = slo.format(f"({of_class} or {of_all})")
    # The dash that an empty class leaves at the end.
    named = f'label_replace({named}, "{SLOTH_SLO.name}", "$1", "{SLOTH_SLO.name}", "(.*)-")'
    service = f'label_replace({named}, "{SLOTH_SERVICE.name}", "$1", "{CLUSTER.name}", "(.*)")'
    return f'label_join({service}, "{SLOTH_ID.name}", "-", "{CLUSTER.name}", "{SLOTH_SLO.name}")'


def _info() -> str:
    percent = f"round(100 * {select(OBJECTIVE)}, 0.001)"
    labels = names(*OBJECTIVE.labels)
    counted = f'count_values by ({labels}) ("{SLOTH_OBJECTIVE.name}", {percent})'
    return f'label_replace({counted}, "{SLOTH_SPEC.name}", "{SLOTH_SPEC.values[0]}", "", "")'


def _days() -> str:
    long = f"and {_ON_KEY} {select(TOTAL_EVENTS, eq(WINDOW, PERIOD))}"
    of_period = f"(0 * {select(OBJECTIVE)} + {PERIOD_DAYS[PERIOD]}) {long}"
    return f"{of_period} or 0 * {select(OBJECTIVE)} + {PERIOD_DAYS[SLICE_PERIOD]}"


def _error_ratio(bad: str, total: str) -> str:
    # Without events the ratio is absent: a NaN that is stored stays in every mean over it.
    return f"{bad} / ({total} > 0) * {_NAMED} ({select(OBJECTIVE)} ^ 0)"


def _error_ratio_in(window: str) -> str:
    at = eq(WINDOW, window)
    bad, total = (by("sum", select(counted, at), *_KEY) for counted in (BAD_EVENTS, TOTAL_EVENTS))
    return _error_ratio(bad, total)


def _current() -> str:
    seconds = select(ERROR_RATIOS[_CURRENT_OF_GPU_SECONDS], one_of(SLO, *GPU_SECOND_SLOS))
    bad, total = (f"last_over_time({select(s)}[{_RECENT}])" for s in (SLICES_BAD, SLICES_TOTAL))
    now = _error_ratio(bad, total)
    events = select(ERROR_RATIOS[_CURRENT_OF_EVENTS])
    return f"({seconds} or {now} or {events}) / {select(ERROR_BUDGET)}"


COUNTS = {
    TOTAL_EVENTS: f"{_counts('total')}\nor\n{_slices(SLICES_TOTAL)}",
    BAD_EVENTS: _bad(),
}
EXPRESSIONS: Expressions = {
    **COUNTS,
    OBJECTIVE: _objective(),
    SLO_INFO: _info(),
    **{series: _error_ratio_in(window) for window, series in ERROR_RATIOS.items()},
    ERROR_BUDGET: f"1 - {select(OBJECTIVE)}",
    TIME_PERIOD: _days(),
    CURRENT_BURN_RATE: _current(),
    PERIOD_BURN_RATE: (
        f"({_error_ratio(_sum_over_period(BAD_EVENTS), _sum_over_period(TOTAL_EVENTS))})"
        f" / {select(ERROR_BUDGET)}"
    ),
    BUDGET_REMAINING: f"1 - {select(PERIOD_BURN_RATE)}",
}
