"""What is left of each error budget, and how fast it goes; recorded series only."""

from lockstep_catalogue import Recorded, Unit, ledger
from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.ledger import JOB_CLASS, SLO, WINDOW
from lockstep_catalogue.promql import Matcher, by, eq
from lockstep_catalogue.recorded_objectives import (
    BAD_EVENTS,
    BUDGET_REMAINING,
    CURRENT_BURN_RATE,
    ERROR_RATIOS,
    OBJECTIVE,
    PERIOD,
    PERIOD_BURN_RATE,
    TOTAL_EVENTS,
)
from lockstep_dashboards.colors import BAD, GOOD, WARNING
from lockstep_dashboards.panel import Panel, Query, Row, Threshold
from lockstep_dashboards.selection import MOST_ROWS, Selection, one_value
from lockstep_dashboards.series_panels import column, stat, table, time_series
from lockstep_dashboards.variables import THESE_LEDGER_CLASSES, THIS_CLUSTER

_OF_CLUSTER = eq(JOB_CLASS, "")
_CHOSEN = Selection((THIS_CLUSTER,), (CLUSTER,))
_CLASSES = Selection((THIS_CLUSTER, THESE_LEDGER_CLASSES), (CLUSTER,))
_BUDGET_LEVELS = (
    Threshold(color=BAD),
    Threshold(color=WARNING, at=0.25),
    Threshold(color=GOOD, at=0.5),
)
BURN_LEVELS = (
    Threshold(color=GOOD),
    Threshold(color=WARNING, at=1),
    Threshold(color=BAD, at=6),
)
_HEADLINES = {
    "job_success": "Budget of job success",
    "goodput": "Budget of goodput",
    "time_to_complete": "Budget of deadlines",
    "resume_success": "Budget of resumes",
}


def _least(series: Recorded, *matchers: Matcher) -> str:
    """The worst cluster's value, by objective."""
    return by("min", _CHOSEN.of(series, _OF_CLUSTER, *matchers), SLO)


def _headline(slo: str, title: str) -> Panel:
    return stat(
        BUDGET_REMAINING,
        one_value(f"min ({_CHOSEN.of(BUDGET_REMAINING, _OF_CLUSTER, eq(SLO, slo))})", "left"),
        title=title,
        note="Of the worst of the chosen clusters.",
        good="half of it or more is left.",
        otherwise="the burn-down says since when; a fast fall is an incident, a slow one a habit.",
        thresholds=_BUDGET_LEVELS,
        shows_windows=True,
        may_be_empty="an objective without events in its period has no budget",
    )


def _counted(series: Recorded) -> Query:
    """Events of the period, of all classes."""
    return Query(expression=by("sum", _CHOSEN.of(series, _OF_CLUSTER, eq(WINDOW, PERIOD)), SLO))


HEADLINES = tuple(_headline(slo, title) for slo, title in _HEADLINES.items())
TREND = Row(
    title="Objectives",
    panels=(
        time_series(
            BUDGET_REMAINING,
            Query(expression=_least(BUDGET_REMAINING), legend="{{slo}}"),
            title="Budgets that are left",
            note="Burn-down of each objective, of the worst of the chosen clusters.",
            good="every line ends its period above 0.",
            otherwise="a line that falls within hours is an incident: the on-call board.",
            maximum=1,
            shows_windows=True,
        ),
        table(
            OBJECTIVE,
            column(OBJECTIVE, Query(expression=_least(OBJECTIVE)), "objective"),
            column(BUDGET_REMAINING, Query(expression=_least(BUDGET_REMAINING)), "budget left"),
            column(
                PERIOD_BURN_RATE,
                Query(expression=by("max", _CHOSEN.of(PERIOD_BURN_RATE, _OF_CLUSTER), SLO)),
                "burnt in the period",
            ),
            column(
                ERROR_RATIOS["7d"],
                Query(expression=by("max", _CHOSEN.of(ERROR_RATIOS["7d"], _OF_CLUSTER), SLO)),
                "bad in 7 days",
            ),
            column(
                CURRENT_BURN_RATE,
                Query(expression=by("max", _CHOSEN.of(CURRENT_BURN_RATE, _OF_CLUSTER), SLO)),
                "burn rate now",
                Unit.NONE,
            ),
            title="Objectives and their budgets",
            good="budget left above 50 %, burn rate now below 1.",
            otherwise="at this pace the budget of 28 days ends in 28 days over the burn rate.",
            columns=(SLO,),
            shows_windows=True,
            may_be_empty="an objective without events in a window has no ratio of it",
        ),
    ),
)
CLASSES = Row(
    title="Objectives by class of job",
    collapsed=True,
    panels=(
        table(
            BUDGET_REMAINING,
            Query(
                expression=f"bottomk({MOST_ROWS}, "
                + _CLASSES.by("min", _CLASSES.of(BUDGET_REMAINING), SLO, JOB_CLASS)
                + ")"
            ),
            title="Budgets by class, the worst first",
            good="no class far below the others.",
            otherwise="a class that burns alone has its own cause: its queue, its code, its nodes.",
            columns=(SLO, JOB_CLASS),
            shows_windows=True,
        ),
        table(
            TOTAL_EVENTS,
            column(TOTAL_EVENTS, _counted(TOTAL_EVENTS), "all"),
            column(BAD_EVENTS, _counted(BAD_EVENTS), "bad"),
            title="Events of 28 days",
            note="GPU-seconds of goodput, ettr and job_success_gpu_seconds.",
            good="hundreds of events: few of them make a budget of one or two.",
            otherwise="an objective over a dozen events says little; look at the events.",
            columns=(SLO,),
            shows_windows=True,
        ),
        time_series(
            ledger.SLO_EVENTS,
            Query(
                expression=by(
                    "sum",
                    _CHOSEN.of(ledger.SLO_EVENTS, eq(WINDOW, "7d"), eq(ledger.SLO_EVENT, "good")),
                    SLO,
                ),
                legend="{{slo}}",
            ),
            title="Good events of seven days, as the ledger counts",
            good="steady for a steady number of jobs.",
            otherwise="a fall to 0 is a ledger that lost its store.",
            width=24,
        ),
    ),
)
