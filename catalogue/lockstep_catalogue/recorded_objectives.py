"""Series that recording rules compute of each objective: counts, budgets and burn rates.

Counts come from the ledger, which has exact ones for every window, or from slices. The names are
those of Sloth where it has one, so that its boards show these objectives too; ``job_class`` is
empty where a series is of the whole cluster.
"""

from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.ledger import (
    EVENT_SLOS,
    GPU_SECOND_SLOS,
    JOB_CLASS,
    SLO,
    SLO_EVENT,
    SLO_EVENTS,
    SLO_WINDOWS,
    WINDOW,
)
from lockstep_catalogue.metric import Label, Recorded, Unit
from lockstep_catalogue.promql import by, eq, has, names, one_of, select
from lockstep_catalogue.recorded_slice_counts import SLICES_BAD, SLICES_TOTAL
from lockstep_catalogue.recorded_slices import NOTHING_DECLARED
from lockstep_catalogue.windows import ScrapeWindows

PERIOD, SLICE_PERIOD = "28d", "7d"
"""Windows over which an objective holds; slices are in Prometheus, which keeps 15 days."""
PERIOD_DAYS = {PERIOD: 28, SLICE_PERIOD: 7}
CURRENT_OF_EVENTS, CURRENT_OF_GPU_SECONDS = "6h", "1h"
"""Windows of the burn rate now: the shortest that a page looks at."""
SLOTH_ID = Label(name="sloth_id", help="cluster and objective")
SLOTH_SERVICE = Label(name="sloth_service", help="the cluster, as boards of Sloth choose it")
SLOTH_SLO = Label(name="sloth_slo", help="the objective, with the class of jobs where it has one")

_COUNTED = (CLUSTER, JOB_CLASS, SLO, WINDOW)
_SLOTH = (SLOTH_ID, SLOTH_SERVICE, SLOTH_SLO)
_OBJECTIVE = (CLUSTER, JOB_CLASS, SLO, *_SLOTH)
_KEY = (CLUSTER, JOB_CLASS, SLO)
_ON_KEY = f"on ({names(*_KEY)})"
_NAMED = f"{_ON_KEY} group_left ({names(*_SLOTH)})"


def _of_spec(_: ScrapeWindows) -> str:
    return NOTHING_DECLARED


def _counts(kind: str) -> str:
    """Of the cluster and of each class; the newest count where two targets are one ledger."""
    all_of_it = eq(SLO_EVENT, kind)
    exact = by("max", select(SLO_EVENTS, all_of_it), *_COUNTED)
    of_cluster = by("sum", exact, CLUSTER, SLO, WINDOW)
    of_classes = by("max", select(SLO_EVENTS, all_of_it, has(JOB_CLASS)), *_COUNTED)
    return f"{of_cluster}\nor\n{of_classes}"


def _slices(counted: Recorded) -> str:
    over = f"sum_over_time({select(counted)}[{SLICE_PERIOD}])"
    return f'label_replace({over}, "{WINDOW.name}", "{SLICE_PERIOD}", "", "")'


def _total(_: ScrapeWindows) -> str:
    return f"{_counts('total')}\nor\n{_slices(SLICES_TOTAL)}"


def _bad(_: ScrapeWindows) -> str:
    good = _counts("good")
    exact = select(TOTAL_EVENTS, one_of(SLO, *EVENT_SLOS, *GPU_SECOND_SLOS))
    return f"{exact} - on ({names(*_COUNTED)}) ({good})\nor\n{_slices(SLICES_BAD)}"


COUNTER_TOTAL = Recorded(
    name="cluster_slo:lockstep_ledger_slo_counter:total5m",
    unit=Unit.NONE,
    labels=(CLUSTER, SLO),
    help="Increase in five minutes of a counter that an objective of the alert spec names.",
    expression=_of_spec,
)
COUNTER_BAD = Recorded(
    name="cluster_slo:lockstep_ledger_slo_counter:bad5m",
    unit=Unit.NONE,
    labels=(CLUSTER, SLO),
    help="The same of what does not meet the objective.",
    expression=_of_spec,
)
TOTAL_EVENTS = Recorded(
    name="slo:sli_total:increase",
    level="slo",
    unit=Unit.NONE,
    labels=_COUNTED,
    help="Events of an objective in a window; GPU-seconds of goodput, ettr and "
    "job_success_gpu_seconds; slices of what is counted in slices.",
    expression=_total,
)
BAD_EVENTS = Recorded(
    name="slo:sli_bad:increase",
    level="slo",
    unit=Unit.NONE,
    labels=_COUNTED,
    help="Events, GPU-seconds or slices of an objective in a window that did not meet it.",
    expression=_bad,
)
GOAL = Recorded(
    name="job_class_slo:lockstep_ledger_slo:good_ratio",
    unit=Unit.RATIO,
    labels=(JOB_CLASS, SLO),
    help="Share of good events that the alert spec declares, of all jobs or of a class of them.",
    expression=_of_spec,
)


def _in_period(counted: Recorded) -> str:
    """Counts of an objective over its own period, without the label of the window."""
    long, short = (by("sum", select(counted, eq(WINDOW, w)), *_KEY) for w in PERIOD_DAYS)
    return f"({long} or {short})"


def _objective(_: ScrapeWindows) -> str:
    counted = f"0 * {_in_period(TOTAL_EVENTS)}"
    of_class = f"{counted} + on ({names(JOB_CLASS, SLO)}) group_left () {select(GOAL)}"
    of_all = f"{counted} + on ({SLO.name}) group_left () {select(GOAL, eq(JOB_CLASS, ''))}"
    slo = f'label_join({{}}, "{SLOTH_SLO.name}", "-", "{SLO.name}", "{JOB_CLASS.name}")'
    named = slo.format(f"({of_class} or {of_all})")
    # The dash that an empty class leaves at the end.
    named = f'label_replace({named}, "{SLOTH_SLO.name}", "$1", "{SLOTH_SLO.name}", "(.*)-")'
    service = f'label_replace({named}, "{SLOTH_SERVICE.name}", "$1", "{CLUSTER.name}", "(.*)")'
    return f'label_join({service}, "{SLOTH_ID.name}", "-", "{CLUSTER.name}", "{SLOTH_SLO.name}")'


OBJECTIVE = Recorded(
    name="slo:objective:ratio",
    level="slo",
    unit=Unit.RATIO,
    labels=_OBJECTIVE,
    help="Share of good events that is promised; a class without a promise has the cluster's.",
    expression=_objective,
)
ERROR_BUDGET = Recorded(
    name="slo:error_budget:ratio",
    level="slo",
    unit=Unit.RATIO,
    labels=_OBJECTIVE,
    help="Share of bad events that the objective allows.",
    expression=lambda _: f"1 - {select(OBJECTIVE)}",
)


def _days(_: ScrapeWindows) -> str:
    long = f"and {_ON_KEY} {select(TOTAL_EVENTS, eq(WINDOW, PERIOD))}"
    of_period = f"(0 * {select(OBJECTIVE)} + {PERIOD_DAYS[PERIOD]}) {long}"
    return f"{of_period} or 0 * {select(OBJECTIVE)} + {PERIOD_DAYS[SLICE_PERIOD]}"


TIME_PERIOD = Recorded(
    name="slo:time_period:days",
    level="slo",
    unit=Unit.NONE,
    labels=_OBJECTIVE,
    help="Days over which the objective holds.",
    expression=_days,
)


def _error_ratio(bad: str, total: str) -> str:
    # Without events there is no ratio: a NaN that is stored stays in every mean over it.
    return f"{bad} / ({total} > 0) * {_NAMED} ({select(OBJECTIVE)} ^ 0)"


def _error_ratio_of(window: str) -> Recorded:
    def expression(_: ScrapeWindows) -> str:
        at = eq(WINDOW, window)
        bad, total = (
            by("sum", select(counted, at), *_KEY) for counted in (BAD_EVENTS, TOTAL_EVENTS)
        )
        return _error_ratio(bad, total)

    return Recorded(
        name=f"slo:sli_error:ratio_rate{'1d' if window == '24h' else window}",
        level="slo",
        unit=Unit.RATIO,
        labels=_OBJECTIVE,
        help=f"Share of bad events in the last {window}; absent where nothing happened.",
        expression=expression,
    )


ERROR_RATIOS = {window: _error_ratio_of(window) for window in SLO_WINDOWS}
"""Share of bad events by window."""


def _current(_: ScrapeWindows) -> str:
    seconds = select(ERROR_RATIOS[CURRENT_OF_GPU_SECONDS], one_of(SLO, *GPU_SECOND_SLOS))
    now = _error_ratio(select(SLICES_BAD), select(SLICES_TOTAL))
    events = select(ERROR_RATIOS[CURRENT_OF_EVENTS])
    return f"({seconds} or {now} or {events}) / {select(ERROR_BUDGET)}"


CURRENT_BURN_RATE = Recorded(
    name="slo:current_burn_rate:ratio",
    level="slo",
    unit=Unit.RATIO,
    labels=_OBJECTIVE,
    help="Times as fast as allowed that the budget is spent: of events over 6 hours, of "
    "GPU-seconds over one, of slices in the last five minutes.",
    expression=_current,
)
PERIOD_BURN_RATE = Recorded(
    name="slo:period_burn_rate:ratio",
    level="slo",
    unit=Unit.RATIO,
    labels=_OBJECTIVE,
    help="The same over the whole period: 1 is all of the budget.",
    expression=lambda _: (
        f"({_error_ratio(_in_period(BAD_EVENTS), _in_period(TOTAL_EVENTS))})"
        f" / {select(ERROR_BUDGET)}"
    ),
)
BUDGET_REMAINING = Recorded(
    name="slo:period_error_budget_remaining:ratio",
    level="slo",
    unit=Unit.RATIO,
    labels=_OBJECTIVE,
    help="Share of the error budget that is left in the period; below 0 it is overspent.",
    expression=lambda _: f"1 - {select(PERIOD_BURN_RATE)}",
)

RECORDED = (
    COUNTER_TOTAL,
    COUNTER_BAD,
    TOTAL_EVENTS,
    BAD_EVENTS,
    GOAL,
    OBJECTIVE,
    ERROR_BUDGET,
    TIME_PERIOD,
    *ERROR_RATIOS.values(),
    CURRENT_BURN_RATE,
    PERIOD_BURN_RATE,
    BUDGET_REMAINING,
)
