"""The tree of routes, and the receiver that each alert must reach by it."""

import json
from collections.abc import Iterable
from typing import NamedTuple

from lockstep_alerts.reading.model import Delivery, group_wait_seconds
from lockstep_alerts.routing.deployment import Deployment, webhooks
from lockstep_alerts.routing.receivers import KINDS
from lockstep_catalogue.foreign import INCIDENT
from lockstep_catalogue.labels import CLUSTER, JOB_ID, PROJECT

WATCHDOG = "TrainWatchdog"
"""A name of its own: kube-prometheus has a Watchdog, with a route of its own."""
CRITICAL = 'severity="critical"'
PAGER = "pager"
TICKETS = "tickets"
NOBODY = "nobody"
DEAD_MAN = "watchdog"
OWNERS = "owners"
_RECEIVERS = {"page": PAGER, "ticket": TICKETS, "watchdog": DEAD_MAN}
# Pages about one loss are one notification: none keeps another quiet, silenced or not.
_PAGE_GROUP = [CLUSTER.name, INCIDENT.name]
_ALERT_GROUP = [CLUSTER.name, "alertname"]
_WATCHDOG_REPEATS = "5m"

Route = dict[str, object]


def _wait(severity: str, delivery: Delivery) -> str:
    return f"{group_wait_seconds(severity, delivery.evaluation_seconds)}s"


def _timed(route: Route, deployment: Deployment, use: str) -> Route:
    """The route with its times; a cluster with maintenance of its own has a route below it.

    Alertmanager's routes do not inherit times, and its root may have none.
    """
    clusters = sorted({each.cluster for each in deployment.maintenance if each.cluster})
    below: list[Route] = [
        {"matchers": [f'{CLUSTER.name}="{cluster}"'], **_times(deployment, use, cluster)}
        for cluster in clusters
        if _times(deployment, use, cluster) != _times(deployment, use, None)
    ]
    return {**route, **_times(deployment, use, None)} | ({"routes": below} if below else {})


def _times(deployment: Deployment, use: str, cluster: str | None) -> Route:
    muted = [each.window.name for each in deployment.maintenance if each.concerns(use, cluster)]
    office = deployment.office_hours if use == "ticket" else None
    times: Route = {"mute_time_intervals": muted} if muted else {}
    return times | ({"active_time_intervals": [office.window.name]} if office else {})


def _routes(delivery: Delivery, deployment: Deployment) -> list[Route]:
    has_dead_man = "watchdog" in deployment.receivers
    page: Route = {
        "receiver": PAGER,
        "group_wait": _wait("critical", delivery),
        "repeat_interval": deployment.cooldown.page.text,
    }
    return [
        {
            "receiver": DEAD_MAN if has_dead_man else NOBODY,
            "matchers": [f'alertname="{WATCHDOG}"'],
            "group_by": _ALERT_GROUP,
            "group_wait": "0s",
            "group_interval": "1m",
            "repeat_interval": _WATCHDOG_REPEATS,
        },
        {"receiver": NOBODY, "matchers": ['severity=~"info|none"']},
        *_owners(delivery, deployment),
        # The wait is part of each alert's deadline, and long enough for a cause to come as well.
        _timed({**page, "matchers": [CRITICAL], "group_by": _PAGE_GROUP}, deployment, "page"),
        _timed({"receiver": TICKETS, "matchers": ['severity!=""']}, deployment, "ticket"),
    ]


def _owners(delivery: Delivery, deployment: Deployment) -> list[Route]:
    """What owners of jobs repair themselves goes to them, by project, at any hour."""
    common = {
        "group_by": [CLUSTER.name, PROJECT.name, JOB_ID.name],
        "group_wait": _wait("critical", delivery),
    }
    projects = {each.project for each in deployment.receivers.get("owners", ())}
    # Of all others comes last: an alert takes the first route that matches.
    return [
        {"receiver": _owners_of(project), "matchers": ['route="owners"', *of_project], **common}
        for project in sorted(projects, reverse=True)
        for of_project in [[f"{PROJECT.name}={json.dumps(project)}"] if project else []]
    ]


def _owners_of(project: str) -> str:
    return f"{OWNERS} of {project}" if project else OWNERS


def _receivers(deployment: Deployment) -> list[dict[str, object]]:
    listed: list[dict[str, object]] = [{"name": NOBODY}]
    for use, receivers in deployment.receivers.items():
        by_name: dict[str, dict[str, list[object]]] = {}
        for each in receivers:
            name = _owners_of(each.project) if use == "owners" else _RECEIVERS[use]
            entries = by_name.setdefault(name, {}).setdefault(KINDS[each.kind].key, [])
            entries.append(each.entry(use))
        listed += [{"name": name, **by_key} for name, by_key in by_name.items()]
    return listed


def alertmanager_config(
    delivery: Delivery, deployment: Deployment | None = None
) -> dict[str, object]:
    """The configuration of Alertmanager; without a deployment, for the local stack's pager."""
    deployment = deployment or webhooks(delivery)
    config: dict[str, object] = {
        "route": {
            "receiver": TICKETS,
            "group_by": _ALERT_GROUP,
            "group_wait": _wait("warning", delivery),
            "group_interval": deployment.cooldown.group_interval.text,
            "repeat_interval": deployment.cooldown.ticket.text,
            "routes": _routes(delivery, deployment),
        },
        "receivers": _receivers(deployment),
    }
    if windows := deployment.time_windows:
        config["time_intervals"] = [each.content() for each in windows]
    return config


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
    by_name = {WATCHDOG: watchdog}
    named = {**dict.fromkeys(by_name, "none"), **dict(severities)}
    return [
        RouteCase(
            labels=(f"alertname={name}", f"severity={severity}", _CLUSTER, *job),
            receiver=by_name.get(name, _SEVERITY_RECEIVERS[severity]),
        )
        for name, severity in named.items()
        for job in ((), (_JOB,))
    ]
