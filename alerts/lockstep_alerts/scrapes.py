"""Scrape configuration of a Prometheus without an operator; deploy/kubernetes has the monitors.

It keeps the agent's labels where they meet those of the target: owners of GPUs have the labels
``namespace``, ``pod`` and ``container``; without ``honor_labels`` they would be the agent's own.
"""

from lockstep_alerts.areas import RULES_FILES
from lockstep_catalogue.windows import ScrapeWindows, spelled

TARGETS_FILE = "targets.json"
_LEDGERS_FILE = "ledgers.json"
_SAMPLE_LIMIT = 10_000


def prometheus_config(
    windows: ScrapeWindows, *, alertmanager: str, prometheus: str
) -> dict[str, object]:
    """The configuration of a Prometheus that evaluates the rules.

    It scrapes the agents, the ledger where a file lists one, and itself: an alert watches how long
    its rules take.
    """
    return {
        "global": {
            "scrape_interval": spelled(windows.scrape_seconds),
            "evaluation_interval": spelled(windows.evaluation_seconds),
        },
        "rule_files": [RULES_FILES],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        "scrape_configs": [
            {
                "job_name": "lockstep-agent",
                "honor_labels": True,
                "sample_limit": _SAMPLE_LIMIT,
                "file_sd_configs": [{"files": [TARGETS_FILE]}],
            },
            {
                "job_name": "lockstep-ledger",
                "honor_labels": True,
                "file_sd_configs": [{"files": [_LEDGERS_FILE]}],
            },
            {"job_name": "prometheus", "static_configs": [{"targets": [prometheus]}]},
        ],
    }
