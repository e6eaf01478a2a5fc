"""Who is told: one page a job, tickets by alert, and a page that hushes the tickets of its job."""

from lockstep_alerts.model import Delivery
from lockstep_catalogue.labels import CLUSTER, JOB_ID

_PAGER = "pager"
_TICKETS = "tickets"
_OF_A_JOB = f'{JOB_ID.name}!=""'
_CRITICAL = 'severity="critical"'


def _webhook(name: str, base: str) -> dict[str, object]:
    return {"name": name, "webhook_configs": [{"url": f"{base}/{name}", "send_resolved": True}]}


def _pages() -> list[dict[str, object]]:
    of_a_job: dict[str, object] = {
        "receiver": _PAGER,
        "matchers": [_CRITICAL, _OF_A_JOB],
        "group_by": [CLUSTER.name, JOB_ID.name],
        "group_wait": "5s",
        "repeat_interval": "4h",
    }
    of_no_job: dict[str, object] = {
        "receiver": _PAGER,
        "matchers": [_CRITICAL],
        "group_wait": "5s",
        "repeat_interval": "4h",
    }
    return [of_a_job, of_no_job]


def alertmanager_config(delivery: Delivery) -> dict[str, object]:
    """The whole configuration of Alertmanager.

    Inhibition asks for a job id on both sides: labels that are missing count as equal, and one
    alert without a job would hush every job of the cluster.
    """
    return {
        "route": {
            "receiver": _TICKETS,
            "group_by": [CLUSTER.name, "alertname"],
            "group_wait": "15s",
            "group_interval": delivery.group_interval.text,
            "repeat_interval": "12h",
            "routes": _pages(),
        },
        "inhibit_rules": [
            {
                "source_matchers": [_CRITICAL, _OF_A_JOB],
                "target_matchers": ['severity=~"warning|info"', _OF_A_JOB],
                "equal": [CLUSTER.name, JOB_ID.name],
            }
        ],
        "receivers": [_webhook(name, delivery.pager_base) for name in (_PAGER, _TICKETS)],
    }
