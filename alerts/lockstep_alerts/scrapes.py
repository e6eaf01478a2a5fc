"""How a Prometheus without an operator scrapes the agents; deploy/kubernetes has the monitors.

It keeps the agent's labels where they meet those of the target: owners of GPUs have the labels
``namespace``, ``pod`` and ``container``; without ``honor_labels`` they would be the agent's own.
"""

from lockstep_catalogue.windows import ScrapeWindows, spelled

JOB_NAME = "lockstep-agent"
LEDGERS_FILE = "ledgers.json"
_SAMPLE_LIMIT = 10_000


def scrape_config(targets_file: str) -> dict[str, object]:
    """The scrape of the agents that a file lists."""
    return {
        "job_name": JOB_NAME,
        "honor_labels": True,
        "sample_limit": _SAMPLE_LIMIT,
        "file_sd_configs": [{"files": [targets_file]}],
    }


def prometheus_config(
    windows: ScrapeWindows,
    *,
    rules_files: str,
    targets_file: str,
    alertmanager: str,
    prometheus: str,
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
        "rule_files": [rules_files],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        "scrape_configs": [
            scrape_config(targets_file),
            {
                "job_name": "lockstep-ledger",
                "honor_labels": True,
                "file_sd_configs": [{"files": [LEDGERS_FILE]}],
            },
            {"job_name": "prometheus", "static_configs": [{"targets": [prometheus]}]},
        ],
    }
