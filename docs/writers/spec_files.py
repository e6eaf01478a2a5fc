"""Files that alerts/slos.yaml decides outside of alerts/generated.

They are the catalogue's module of limits, the configurations of a Prometheus without an operator,
and a section of every runbook.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import Spec, read_spec
from lockstep_alerts.stack.servers import prometheus_config
from lockstep_catalogue.ledger import SLOS
from lockstep_catalogue.windows import ScrapeWindows

_LIMITS = '''\
"""Limits of alerts/slos.yaml by which other programs judge; written by ``make generate``."""

import math

from lockstep_catalogue.windows import ScrapeWindows

DECLARED = ScrapeWindows(scrape_seconds={seconds})
"""What follows from the scrape interval."""
QUEUE_WAIT_TARGETS = ({queue_wait})
"""Most GPUs and the seconds that a job of this size may wait; each is an edge of the histogram."""
PREEMPTION_GRACE_SECONDS = {grace}
"""What a preemption may cost beyond an interval of checkpoints."""
MIN_WAIT_RATIO = {min_wait:g}
"""Share of the step that some rank of a healthy group waits at least."""
MAX_OTHER_RATIO = {max_other:g}
"""Share of the step in no marked phase from which on it may hide a slow rank."""
SLO_GOALS = {{
{goals}}}
"""Share of good events that is promised over 28 days, by objective that the ledger counts."""
'''


_HEAD = (
    "# Written by `make generate` from alerts/slos.yaml and"
    " alerts/lockstep_alerts/stack/servers.py.\n"
)
_PROMETHEUS_HEAD = f"""{_HEAD}# Without the operator: prometheus --config.file=prometheus.yaml \
--rules.alert.resend-delay=3m
# targets.json lists the agents: [{{"targets": ["node1:9440", "node2:9440"]}}]
# ledgers.json lists the ledger, where there is one: [{{"targets": ["ledger:9450"]}}]
# Agents and ledger of Kubernetes ask for a token: components/plain-prometheus has their scrapes.
"""
_NATIVE_HEAD = f"""{_HEAD}# As prometheus.yaml, with histograms as native ones too.
# Needs Prometheus 3.5; before 3.8 with --enable-feature=native-histograms.
# The rules for it: lockstep alerts generate --histograms native
"""
_NATIVE = {"convert_classic_histograms_to_nhcb": True, "always_scrape_classic_histograms": True}


def render() -> dict[Path, str]:
    """The text of every file by its path, of the shipped spec."""
    spec = read_spec(spec_path())
    scrapes = render_scrapes(spec.windows)
    return {
        Path("catalogue/lockstep_catalogue/limits.py"): render_limits(spec),
        **{Path("deploy", name): text for name, text in scrapes.items()},
    }


def render_limits(spec: Spec) -> str:
    """The text of the catalogue's module of limits."""
    limits = spec.limits
    waits = ", ".join(
        f"({'math.inf' if math.isinf(each.up_to_gpus) else each.up_to_gpus}, "
        f"{float(each.wait.seconds)})"
        for each in limits.queue_wait
    )
    goals = "".join(f'    "{x.slo}": {x.good_ratio:g},\n' for x in spec.objectives if x.slo in SLOS)
    return _LIMITS.format(
        seconds=spec.windows.scrape_seconds,
        queue_wait=waits,
        grace=float(limits.preemption_grace.seconds),
        min_wait=limits.min_wait_ratio,
        max_other=limits.max_other_ratio,
        goals=goals,
    )


def with_native_histograms(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration for a Prometheus that converts histograms; the boards read classic ones."""
    scrapes = [{**scrape, **_NATIVE} for scrape in config["scrape_configs"]]
    return {**config, "scrape_configs": scrapes}


def render_scrapes(windows: ScrapeWindows) -> dict[str, str]:
    """The text of every file in ``deploy/`` that follows from the scrape interval, by its path."""
    prometheus = prometheus_config(
        windows, alertmanager="127.0.0.1:9093", prometheus="127.0.0.1:9090"
    )
    native = with_native_histograms(prometheus)
    return {
        "prometheus/prometheus.yaml": _PROMETHEUS_HEAD
        + yaml.safe_dump(prometheus, sort_keys=False),
        "prometheus/prometheus-native.yaml": _NATIVE_HEAD + yaml.safe_dump(native, sort_keys=False),
    }
