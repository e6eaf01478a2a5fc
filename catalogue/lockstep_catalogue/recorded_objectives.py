"""Series that recording rules compute from the ledger's exact counts of each objective."""

from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.ledger import SLO, SLO_EVENT, SLO_EVENTS, WINDOW
from lockstep_catalogue.metric import Recorded, Unit
from lockstep_catalogue.promql import by, eq, select
from lockstep_catalogue.windows import ScrapeWindows

_LABELS = (CLUSTER, SLO, WINDOW)


def _events(kind: str) -> str:
    # ``max``: two Prometheus targets may lead to one ledger, and its counts are exact.
    return by("max", select(SLO_EVENTS, eq(SLO_EVENT, kind)), *_LABELS)


def _total(_: ScrapeWindows) -> str:
    return _events("total")


def _bad(_: ScrapeWindows) -> str:
    return f"{_events('total')} - {_events('good')}"


TOTAL_EVENTS = Recorded(
    name="cluster_slo_window:lockstep_ledger_slo_events:total",
    unit=Unit.NONE,
    labels=_LABELS,
    help="Events of an objective in a window; of goodput and ettr GPU-seconds.",
    expression=_total,
)
BAD_EVENTS = Recorded(
    name="cluster_slo_window:lockstep_ledger_slo_events:bad",
    unit=Unit.NONE,
    labels=_LABELS,
    help="Events of an objective in a window that did not meet it.",
    expression=_bad,
)

RECORDED = (TOTAL_EVENTS, BAD_EVENTS)
