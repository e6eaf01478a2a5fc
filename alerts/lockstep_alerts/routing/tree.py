"""The tree of routes, and the receiver that each alert must reach by it."""

import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

from lockstep_alerts.reading.model import Delivery, group_wait_seconds
from lockstep_alerts.routing.receivers import KINDS, Deployment, OfficeHours, webhooks
from lockstep_catalogue.foreign import INCIDENT
from lockstep_catalogue.labels import CLUSTER, JOB_ID, PROJECT
from lockstep_catalogue.vocabulary import CANARY_ALERT
from lockstep_catalogue.windows import spelled

OVERNIGHT = "TrainTicketOvernight"
OVERNIGHT_FILE = "lockstep-overnight.rules.yaml"
_LOCAL, _OPEN = "lockstep:local_time:seconds", "lockstep:office_hours:open"
_CLOSED_TICKETS, _OPEN_TICKETS = "lockstep:tickets:closed", "lockstep:tickets:open"
_DAY_SECONDS, _MINUTE_SECONDS = 86_400, 60
_MORNING_SECONDS = 1800
_FIRST, _LAST = datetime(2026, 1, 1, tzinfo=UTC), datetime(2038, 1, 1, tzinfo=UTC)
"""PromQL knows no time zones: the changes of the clock between the two are written out."""


def overnight_rules(
    alerts: tuple[str, ...], delivery: Delivery, deployment: Deployment
) -> list[dict[str, object]]:
    """The groups of the rules; none where tickets are notified at any hour."""
    hours = deployment.office_hours
    if hours is None or not (terms := _select_missed(hours, delivery, deployment)):
        return []
    records = {
        _LOCAL: f"vector({local_seconds(hours.window.time_zone)})",
        _OPEN: _is_open(hours),
        _CLOSED_TICKETS: f"{_tickets(alerts, deployment)} and on () ({_OPEN} == 0)",
        _OPEN_TICKETS: f"{_tickets(alerts, deployment)} and on () ({_OPEN} == 1)",
    }
    morning = f"{_OPEN} == 1 and {_LOCAL} % {_DAY_SECONDS} < {hours.begin + _MORNING_SECONDS}"
    missed = f"({' or '.join(terms)})\nunless {_OPEN_TICKETS}\nand on () ({morning})"
    alert = {
        "alert": OVERNIGHT,
        "expr": f'label_replace({missed}, "ticket", "$1", "alertname", "(.+)")',
        "labels": {"severity": "warning"},
        "annotations": {
            "summary": "{{ $labels.ticket }} fired outside the office hours, and has ended",
            "description": "Where: {{ range $name, $value := $labels }}"
            '{{ if match "cluster|job_id|node|rank|slo|instance" $name }}'
            "{{ $name }} {{ $value }}; {{ end }}{{ end }}nobody was notified of it then.",
            "runbook_url": f"{delivery.runbook_base}{{{{ $labels.ticket }}}}.md",
        },
    }
    rules = [{"record": name, "expr": text} for name, text in records.items()]
    return [{"name": "lockstep-overnight", "interval": "1m", "rules": [*rules, alert]}]


def local_seconds(time_zone: str) -> str:
    """The time of day and day of the week of a zone as PromQL, a scalar of seconds."""
    zone = ZoneInfo(time_zone)

    def offset(moment: datetime) -> int:
        return round((moment.astimezone(zone).utcoffset() or timedelta()).total_seconds())

    hours = (_LAST - _FIRST) // timedelta(hours=1)
    offsets = [offset(_FIRST + timedelta(hours=number)) for number in range(hours)]
    begin = round(_FIRST.timestamp())
    changes = [
        f" + {after - before} * (time() >= bool {begin + 3600 * number})"
        for number, (before, after) in enumerate(pairwise(offsets), 1)
        if before != after
    ]
    return f"time() + {offsets[0]}{''.join(changes)}"


def _tickets(alerts: tuple[str, ...], deployment: Deployment) -> str:
    to_operators = ', route!="owners"' if "owners" in deployment.receivers else ""
    firing = 'ALERTS{alertstate="firing"'
    tickets = f'{firing}, severity="warning", alertname=~"{"|".join(alerts)}"{to_operators}}}'
    return f"max without (alertstate) ({tickets})"


def _is_open(hours: OfficeHours) -> str:
    seconds = f"{_LOCAL} % {_DAY_SECONDS}"
    return (
        f"({seconds} >= bool {hours.begin}) * ({seconds} < bool {hours.end}) * "
        f"({' + '.join(f'(day_of_week({_LOCAL}) == bool {day})' for day in hours.days)})"
    )


def _select_missed(hours: OfficeHours, delivery: Delivery, deployment: Deployment) -> list[str]:
    """Tickets of the closed hours that end on each opening day, by the length of those hours."""
    length = hours.end - hours.begin
    before = {
        day: ((day - previous - 1) % 7 + 1) * _DAY_SECONDS - length
        for previous, day in pairwise((hours.days[-1], *hours.days))
    }
    wait = group_wait_seconds("warning", delivery.evaluation_seconds)
    # A change in a group that was notified waits for the group's interval.
    minutes = math.ceil((deployment.cooldown.group_interval.seconds + wait) / _MINUTE_SECONDS)
    window = spelled(_MORNING_SECONDS + 2 * (minutes + 1) * _MINUTE_SECONDS)
    return [
        f"last_over_time({_CLOSED_TICKETS}[{spelled(closed + _MORNING_SECONDS)}])"
        f" unless count_over_time({_OPEN_TICKETS}[{window}] offset {spelled(closed)}) > {minutes}"
        f" and on () ({' or '.join(f'day_of_week({_LOCAL}) == {day}' for day in days)})"
        for closed in sorted(set(before.values()) - {0})
        if (days := [day for day in before if before[day] == closed])
    ]


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
            "matchers": [f'alertname=~"{WATCHDOG}|{CANARY_ALERT}"'],
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
    by_name = {WATCHDOG: watchdog, CANARY_ALERT: watchdog}
    named = {**dict.fromkeys(by_name, "none"), **dict(severities)}
    return [
        RouteCase(
            labels=(f"alertname={name}", f"severity={severity}", _CLUSTER, *job),
            receiver=by_name.get(name, _SEVERITY_RECEIVERS[severity]),
        )
        for name, severity in named.items()
        for job in ((), (_JOB,))
    ]
