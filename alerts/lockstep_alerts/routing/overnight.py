"""Rules that keep what fired outside the office hours until the morning.

Alertmanager drops a ticket that fires and resolves while its route is muted: nobody hears of it.
"""

import math
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from lockstep_alerts.reading.model import Delivery, group_wait_seconds
from lockstep_alerts.routing.deployment import Deployment
from lockstep_alerts.routing.time_windows import OfficeHours
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
    """Tickets that fire."""
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
