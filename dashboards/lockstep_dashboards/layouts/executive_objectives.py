"""What is left of each error budget, and how fast it goes; recorded series only."""

from lockstep_catalogue import Unit
from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.ledger import SLO, WINDOW
from lockstep_catalogue.promql import by, eq, one_of
from lockstep_catalogue.recorded_objectives import BAD_EVENTS, TOTAL_EVENTS
from lockstep_dashboards.colors import BAD, GOOD, WARNING
from lockstep_dashboards.panel import Panel, Threshold
from lockstep_dashboards.selection import Selection, one_value
from lockstep_dashboards.series_panels import stat
from lockstep_dashboards.variables import THIS_CLUSTER

_CHOSEN = Selection((THIS_CLUSTER,), (CLUSTER,))
_PERIOD = "28d"
_LEVELS = (
    Threshold(color=BAD),
    Threshold(color=WARNING, at=0.9),
    Threshold(color=GOOD, at=0.95),
)
_HEADLINES = {
    "job_success": "Jobs that succeed",
    "goodput": "Goodput",
    "time_to_complete": "Deadlines met",
    "resume_success": "Resumes that succeed",
}


def _good_ratio(window: str, *slos: str) -> str:
    """Good events over all events of a window, by objective."""
    chosen = (eq(WINDOW, window), *((one_of(SLO, *slos),) if slos else ()))
    bad, total = (
        by("sum", _CHOSEN.of(series, *chosen), CLUSTER, SLO)
        for series in (BAD_EVENTS, TOTAL_EVENTS)
    )
    return f"1 - {bad} / ({total} > 0)"


def _headline(slo: str, title: str) -> Panel:
    return stat(
        TOTAL_EVENTS,
        one_value(_good_ratio(_PERIOD, slo), "{{cluster}}"),
        title=title,
        note="Good events of all, over 28 days.",
        good="above the objective in slos.yaml.",
        otherwise="open the row of trends: a fast fall is an incident, a slow one a habit.",
        unit=Unit.RATIO,
        thresholds=_LEVELS,
        shows_windows=True,
    )
