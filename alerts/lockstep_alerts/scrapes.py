"""How a Prometheus without an operator scrapes the agents; deploy/kubernetes has the monitors.

It keeps the agent's labels where they meet those of the target: owners of GPUs have the labels
``namespace``, ``pod`` and ``container``; without ``honor_labels`` they would be the agent's own.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lockstep_alerts.areas import RULES_FILES
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec
from lockstep_catalogue.windows import ScrapeWindows, spelled

JOB_NAME = "lockstep-agent"
LEDGERS_FILE = "ledgers.json"
_SAMPLE_LIMIT = 10_000
_HEAD = (
    "# Written by `make generate` from alerts/slos.yaml and alerts/lockstep_alerts/scrapes.py.\n"
)
_PROMETHEUS_HEAD = f"""{_HEAD}# Without the operator: prometheus --config.file=prometheus.yaml
# targets.json lists the agents: [{{"targets": ["node1:9440", "node2:9440"]}}]
# ledgers.json lists the ledger, where there is one: [{{"targets": ["ledger:9450"]}}]
# Agents and ledger of Kubernetes ask for a token: components/plain-prometheus has their scrapes.
"""
_NATIVE_HEAD = f"""{_HEAD}# As prometheus.yaml, with histograms as native ones too.
# Needs Prometheus 3.5; before 3.8 with --enable-feature=native-histograms.
# The rules for it: lockstep alerts generate --histograms native
"""
_NATIVE = {"convert_classic_histograms_to_nhcb": True, "always_scrape_classic_histograms": True}


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


def with_native_histograms(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration for a Prometheus that converts histograms; the boards read classic ones."""
    scrapes = [{**scrape, **_NATIVE} for scrape in config["scrape_configs"]]
    return {**config, "scrape_configs": scrapes}


def render(windows: ScrapeWindows) -> dict[str, str]:
    """The text of every file in ``deploy/`` that follows from the scrape interval, by its path."""
    prometheus = prometheus_config(
        windows,
        rules_files=RULES_FILES,
        targets_file="targets.json",
        alertmanager="127.0.0.1:9093",
        prometheus="127.0.0.1:9090",
    )
    return {
        "prometheus/prometheus.yaml": _PROMETHEUS_HEAD + _to_yaml(prometheus),
        "prometheus/prometheus-native.yaml": (
            _NATIVE_HEAD + _to_yaml(with_native_histograms(prometheus))
        ),
    }


def _to_yaml(content: Mapping[str, object]) -> str:
    return yaml.safe_dump(dict(content), sort_keys=False)


if __name__ == "__main__":
    for name, text in render(read_spec(spec_path()).windows).items():
        path = Path(sys.argv[1]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
