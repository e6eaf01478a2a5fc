"""Series that recording rules compute of each objective: counts, budgets and burn rates.

The names are those of Sloth where it has one, so that its boards show these objectives too;
``job_class`` is empty where a series is of the whole cluster. The PromQL is in
``lockstep_alerts.rules``.
"""

from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.ledger import JOB_CLASS, SLO, SLO_WINDOWS, WINDOW
from lockstep_catalogue.metric import Label, Recorded

PERIOD, SLICE_PERIOD = "28d", "7d"
"""Windows over which an objective holds; slices are in Prometheus, which keeps 15 days."""
PERIOD_DAYS = {PERIOD: 28, SLICE_PERIOD: 7}
SLOTH_ID = Label(name="sloth_id", help="cluster and objective")
SLOTH_SERVICE = Label(name="sloth_service", help="the cluster, as boards of Sloth choose it")
SLOTH_SLO = Label(name="sloth_slo", help="the objective, with the class of jobs where it has one")

_COUNTED = (CLUSTER, JOB_CLASS, SLO, WINDOW)
_SLOTH = (SLOTH_ID, SLOTH_SERVICE, SLOTH_SLO)
_OBJECTIVE = (CLUSTER, JOB_CLASS, SLO, *_SLOTH)
_KEY = (CLUSTER, JOB_CLASS, SLO)

COUNTER_TOTAL = Recorded(
    name="cluster_slo:lockstep_ledger_slo_counter:total5m",
    labels=(CLUSTER, SLO),
    help="Increase in five minutes of a counter that an objective of the alert spec names.",
)
COUNTER_BAD = Recorded(
    name="cluster_slo:lockstep_ledger_slo_counter:bad5m",
    labels=(CLUSTER, SLO),
    help="Increase in five minutes of a counter of an objective, of what does not meet it.",
)
TOTAL_EVENTS = Recorded(
    name="slo:sli_total:increase",
    level="slo",
    labels=_COUNTED,
    help="Events of an objective in a window; GPU-seconds of goodput, ettr and "
    "job_success_gpu_seconds; slices of what is counted in slices.",
)
BAD_EVENTS = Recorded(
    name="slo:sli_bad:increase",
    level="slo",
    labels=_COUNTED,
    help="Events, GPU-seconds or slices of an objective in a window that did not meet it.",
)
GOAL = Recorded(
    name="job_class_slo:lockstep_ledger_slo:good_ratio",
    labels=(JOB_CLASS, SLO),
    help="Share of good events that the alert spec declares, of all jobs or of a class of them.",
)
OBJECTIVE = Recorded(
    name="slo:objective:ratio",
    level="slo",
    labels=_OBJECTIVE,
    help="Share of good events that is promised; a class without a promise has the cluster's.",
)
ERROR_BUDGET = Recorded(
    name="slo:error_budget:ratio",
    level="slo",
    labels=_OBJECTIVE,
    help="Share of bad events that the objective allows.",
)
TIME_PERIOD = Recorded(
    name="slo:time_period:days",
    level="slo",
    labels=_OBJECTIVE,
    help="Days over which the objective holds.",
)


def _error_ratio(window: str) -> Recorded:
    return Recorded(
        name=f"slo:sli_error:ratio_rate{'1d' if window == '24h' else window}",
        level="slo",
        labels=_OBJECTIVE,
        help=f"Share of bad events in the last {window}; absent where nothing happened.",
    )


ERROR_RATIOS = {window: _error_ratio(window) for window in SLO_WINDOWS}
"""Share of bad events by window."""

CURRENT_BURN_RATE = Recorded(
    name="slo:current_burn_rate:ratio",
    level="slo",
    labels=_OBJECTIVE,
    help="Times as fast as allowed that the budget is spent: of events over 6 hours, of "
    "GPU-seconds over one, of slices in the last five minutes.",
)
PERIOD_BURN_RATE = Recorded(
    name="slo:period_burn_rate:ratio",
    level="slo",
    labels=_OBJECTIVE,
    help="Share of the error budget of the period that is spent: 1 is all of it.",
)
BUDGET_REMAINING = Recorded(
    name="slo:period_error_budget_remaining:ratio",
    level="slo",
    labels=_OBJECTIVE,
    help="Share of the error budget that is left in the period; below 0 it is overspent.",
)
