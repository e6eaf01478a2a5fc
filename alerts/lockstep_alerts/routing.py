"""Who is notified: one page a job, tickets by alert; a page inhibits the tickets of its job."""

from lockstep_alerts.model import GROUP_WAIT_SECONDS, Delivery
from lockstep_catalogue.labels import CLUSTER, JOB_ID
from lockstep_catalogue.ledger import SLO

_PAGER = "pager"
_TICKETS = "tickets"
_HAS_JOB = f'{JOB_ID.name}!=""'
_HAS_OBJECTIVE = f'{SLO.name}!=""'
_CRITICAL = 'severity="critical"'
_PAGE_WAIT = f"{GROUP_WAIT_SECONDS['critical']}s"
_TICKET_WAIT = f"{GROUP_WAIT_SECONDS['warning']}s"


def _webhook(name: str, base: str) -> dict[str, object]:
    return {"name": name, "webhook_configs": [{"url": f"{base}/{name}", "send_resolved": True}]}


def _pages() -> list[dict[str, object]]:
    per_job: dict[str, object] = {
        "receiver": _PAGER,
        "matchers": [_CRITICAL, _HAS_JOB],
        "group_by": [CLUSTER.name, JOB_ID.name],
        # Part of each alert's deadline: long enough for alerts of one incident to come together.
        "group_wait": _PAGE_WAIT,
        "repeat_interval": "4h",
    }
    without_job: dict[str, object] = {
        "receiver": _PAGER,
        "matchers": [_CRITICAL],
        "group_wait": _PAGE_WAIT,
        "repeat_interval": "4h",
    }
    return [per_job, without_job]


def alertmanager_config(delivery: Delivery) -> dict[str, object]:
    """The configuration of Alertmanager.

    Inhibition asks for a job id on both sides: labels that are missing count as equal, and one
    alert without a job would inhibit every job of the cluster.
    """
    return {
        "route": {
            "receiver": _TICKETS,
            "group_by": [CLUSTER.name, "alertname"],
            "group_wait": _TICKET_WAIT,
            "group_interval": delivery.group_interval.text,
            "repeat_interval": "12h",
            "routes": _pages(),
        },
        "inhibit_rules": [
            {
                "source_matchers": [_CRITICAL, _HAS_JOB],
                "target_matchers": ['severity=~"warning|info"', _HAS_JOB],
                "equal": [CLUSTER.name, JOB_ID.name],
            },
            {
                "source_matchers": [_CRITICAL, _HAS_OBJECTIVE],
                "target_matchers": ['severity="warning"', _HAS_OBJECTIVE],
                "equal": [CLUSTER.name, SLO.name],
            },
        ],
        "receivers": [_webhook(name, delivery.pager_base) for name in (_PAGER, _TICKETS)],
    }
