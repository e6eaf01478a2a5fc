"""PromQL of each objective: counts, budgets and burn rates.

Counts come from the ledger, which has exact ones for every window, or from slices.
"""

from lockstep_alerts.rules.parameters import Expressions
from lockstep_catalogue import recorded
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

_CURRENT_OF_EVENTS, _CURRENT_OF_GPU_SECONDS = "6h", "1h"
"""Windows of the burn rate now: the shortest that a page looks at."""

_COUNTED = (CLUSTER, JOB_CLASS, SLO, WINDOW)
_SLOTH = (recorded.SLOTH_ID, recorded.SLOTH_SERVICE, recorded.SLOTH_SLO)
_KEY = (CLUSTER, JOB_CLASS, SLO)
_KEY_JOIN = f"on ({names(*_KEY)})"
_NAMED = f"{_KEY_JOIN} group_left ({names(*_SLOTH)})"


def _counts(kind: str) -> str:
    """Of the cluster and of each class; the newest count where two targets are one ledger."""
    all_of_it = eq(SLO_EVENT, kind)
    exact = by("max", select(SLO_EVENTS, all_of_it), *_COUNTED)
    of_cluster = by("sum", exact, CLUSTER, SLO, WINDOW)
    of_classes = by("max", select(SLO_EVENTS, all_of_it, has(JOB_CLASS)), *_COUNTED)
    return f"{of_cluster}\nor\n{of_classes}"


_RECENT = "2m"  # slices are evaluated once a minute, in another file


def _slices(counted: Recorded) -> str:
    over = f"sum_over_time({select(counted)}[{recorded.SLICE_PERIOD}])"
    return f'label_replace({over}, "{WINDOW.name}", "{recorded.SLICE_PERIOD}", "", "")'


def _bad() -> str:
    good = _counts("good")
    exact = select(recorded.TOTAL_EVENTS, one_of(SLO, *EVENT_SLOS, *GPU_SECOND_SLOS))
    return f"{exact} - on ({names(*_COUNTED)}) ({good})\nor\n{_slices(recorded.SLICES_BAD)}"


def _sum_over_period(counted: Recorded) -> str:
    """Counts of an objective over its own period, without the label of the window."""
    long, short = (by("sum", select(counted, eq(WINDOW, w)), *_KEY) for w in recorded.PERIOD_DAYS)
    return f"({long} or {short})"


def _objective() -> str:
    counted = f"0 * {_sum_over_period(recorded.TOTAL_EVENTS)}"
    of_class = f"{counted} + on ({names(JOB_CLASS, SLO)}) group_left () {select(recorded.GOAL)}"
    of_all = f"{counted} + on ({SLO.name}) group_left () {select(recorded.GOAL, eq(JOB_CLASS, ''))}"
    slo = recorded.SLOTH_SLO.name
    named = f'label_join(({of_class} or {of_all}), "{slo}", "-", "{SLO.name}", "{JOB_CLASS.name}")'
    # The dash that an empty class leaves at the end.
    named = f'label_replace({named}, "{slo}", "$1", "{slo}", "(.*)-")'
    service = (
        f'label_replace({named}, "{recorded.SLOTH_SERVICE.name}", "$1", "{CLUSTER.name}", "(.*)")'
    )
    return f'label_join({service}, "{recorded.SLOTH_ID.name}", "-", "{CLUSTER.name}", "{slo}")'


def _info() -> str:
    percent = f"round(100 * {select(recorded.OBJECTIVE)}, 0.001)"
    labels = names(*recorded.OBJECTIVE.labels)
    counted = f'count_values by ({labels}) ("{recorded.SLOTH_OBJECTIVE.name}", {percent})'
    spec = recorded.SLOTH_SPEC
    return f'label_replace({counted}, "{spec.name}", "{spec.values[0]}", "", "")'


def _days() -> str:
    long = f"and {_KEY_JOIN} {select(recorded.TOTAL_EVENTS, eq(WINDOW, recorded.PERIOD))}"
    period, slice_period = (
        f"0 * {select(recorded.OBJECTIVE)} + {recorded.PERIOD_DAYS[each]}"
        for each in (recorded.PERIOD, recorded.SLICE_PERIOD)
    )
    return f"({period}) {long} or {slice_period}"


def _error_ratio(bad: str, total: str) -> str:
    # Without events the ratio is absent: a NaN that is stored stays in every mean over it.
    return f"{bad} / ({total} > 0) * {_NAMED} ({select(recorded.OBJECTIVE)} ^ 0)"


def _error_ratio_in(window: str) -> str:
    at = eq(WINDOW, window)
    bad, total = (
        by("sum", select(counted, at), *_KEY)
        for counted in (recorded.BAD_EVENTS, recorded.TOTAL_EVENTS)
    )
    return _error_ratio(bad, total)


def _current() -> str:
    seconds = select(recorded.ERROR_RATIOS[_CURRENT_OF_GPU_SECONDS], one_of(SLO, *GPU_SECOND_SLOS))
    bad, total = (
        f"last_over_time({select(s)}[{_RECENT}])"
        for s in (recorded.SLICES_BAD, recorded.SLICES_TOTAL)
    )
    now = _error_ratio(bad, total)
    events = select(recorded.ERROR_RATIOS[_CURRENT_OF_EVENTS])
    return f"({seconds} or {now} or {events}) / {select(recorded.ERROR_BUDGET)}"


COUNTS = {
    recorded.TOTAL_EVENTS: f"{_counts('total')}\nor\n{_slices(recorded.SLICES_TOTAL)}",
    recorded.BAD_EVENTS: _bad(),
}
EXPRESSIONS: Expressions = {
    **COUNTS,
    recorded.OBJECTIVE: _objective(),
    recorded.SLO_INFO: _info(),
    **{series: _error_ratio_in(window) for window, series in recorded.ERROR_RATIOS.items()},
    recorded.ERROR_BUDGET: f"1 - {select(recorded.OBJECTIVE)}",
    recorded.TIME_PERIOD: _days(),
    recorded.CURRENT_BURN_RATE: _current(),
    recorded.PERIOD_BURN_RATE: (
        f"({_error_ratio(*map(_sum_over_period, (recorded.BAD_EVENTS, recorded.TOTAL_EVENTS)))})"
        f" / {select(recorded.ERROR_BUDGET)}"
    ),
    recorded.BUDGET_REMAINING: f"1 - {select(recorded.PERIOD_BURN_RATE)}",
}
