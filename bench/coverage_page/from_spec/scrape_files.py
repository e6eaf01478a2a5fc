"""The configurations of a Prometheus without an operator, in deploy/prometheus."""

from collections.abc import Mapping
from typing import Any

import yaml

from lockstep_alerts.scrapes import prometheus_config
from lockstep_catalogue.windows import ScrapeWindows

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


def with_native_histograms(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration for a Prometheus that converts histograms; the boards read classic ones."""
    scrapes = [{**scrape, **_NATIVE} for scrape in config["scrape_configs"]]
    return {**config, "scrape_configs": scrapes}


def render(windows: ScrapeWindows) -> dict[str, str]:
    """The text of every file in ``deploy/`` that follows from the scrape interval, by its path."""
    prometheus = prometheus_config(
        windows,
        alertmanager="127.0.0.1:9093",
        prometheus="127.0.0.1:9090",
    )
    native = with_native_histograms(prometheus)
    return {
        "prometheus/prometheus.yaml": _PROMETHEUS_HEAD
        + yaml.safe_dump(prometheus, sort_keys=False),
        "prometheus/prometheus-native.yaml": _NATIVE_HEAD + yaml.safe_dump(native, sort_keys=False),
    }
