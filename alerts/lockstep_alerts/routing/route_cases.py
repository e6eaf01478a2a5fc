"""The receiver that each generated alert must reach: cases for amtool's route test."""

from collections.abc import Iterable
from typing import NamedTuple

from lockstep_alerts.routing.inhibition import MAINTENANCE, WATCHDOG
from lockstep_alerts.routing.tree import DEAD_MAN, NOBODY, PAGER, TICKETS
from lockstep_catalogue.labels import CLUSTER, JOB_ID

_SEVERITY_RECEIVERS = {"critical": PAGER, "warning": TICKETS, "info": NOBODY, "none": NOBODY}
_CLUSTER = f"{CLUSTER.name}=c1"
_JOB = f"{JOB_ID.name}=j1"


class RouteCase(NamedTuple):
    """Labels of an alert, and the receiver that they must reach."""

    labels: tuple[str, ...]
    receiver: str


def route_cases(
    severities: Iterable[tuple[str, str]], receivers: frozenset[str]
) -> list[RouteCase]:
    """One case for each alert without and with a job."""
    watchdog = DEAD_MAN if DEAD_MAN in receivers else NOBODY
    by_name = {WATCHDOG: watchdog, MAINTENANCE: NOBODY}
    named = {**dict.fromkeys(by_name, "none"), **dict(severities)}
    return [
        RouteCase(
            labels=(f"alertname={name}", f"severity={severity}", _CLUSTER, *job),
            receiver=by_name.get(name, _SEVERITY_RECEIVERS[severity]),
        )
        for name, severity in named.items()
        for job in ((), (_JOB,))
    ]
