"""Recorded series and firing alerts: the shipped rules, computed by Prometheus over the range."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import yaml

from .cluster import Cluster, Values
from .remote_write import Samples, send

RULES = Path(__file__).parents[2] / "alerts" / "generated"
_BEGIN = "ALERTS_FOR_STATE"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@dataclass(frozen=True, slots=True)
class Rule:
    """A recording rule, or an alert."""

    name: str
    expression: str
    is_alert: bool
    labels: dict[str, str] = field(default_factory=dict)
    for_seconds: float = 0.0


def shipped_rules(folder: Path = RULES) -> list[Rule]:
    """The rules of the folder's files, each after those that it reads."""
    rules = [
        _rule(entry)
        for path in sorted(folder.glob("*.rules.yaml"))
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for entry in group["rules"]
    ]
    by_name = {rule.name: rule for rule in rules if not rule.is_alert}
    needed = {
        name: [each for each in by_name if each != name and each in rule.expression]
        for name, rule in by_name.items()
    }
    recorded = [by_name[name] for name in TopologicalSorter(needed).static_order()]
    return [*recorded, *(rule for rule in rules if rule.is_alert)]


def _rule(entry: dict[str, Any]) -> Rule:
    labels = {str(key): str(value) for key, value in entry.get("labels", {}).items()}
    is_alert = "alert" in entry
    return Rule(
        name=str(entry["alert" if is_alert else "record"]),
        expression=str(entry["expr"]),
        is_alert=is_alert,
        labels=labels,
        for_seconds=_seconds(str(entry.get("for", "0s"))),
    )


def _seconds(duration: str) -> float:
    parts = re.findall(r"(\d+)(ms|[smhd])", duration)
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def record(url: str, cluster: Cluster, rules: Iterable[Rule]) -> int:
    """Computes each rule at each scrape and writes what it gives; returns the samples written."""
    number = 0
    with httpx.Client(base_url=url, timeout=300, trust_env=False) as client:
        for rule in rules:
            series = list(_evaluate(client, cluster, rule))
            number += send(url, cluster.times, series)
    return number


def _evaluate(client: httpx.Client, cluster: Cluster, rule: Rule) -> Iterator[Samples]:
    parameters = {
        "query": rule.expression,
        "start": f"{cluster.times[0]:.3f}",
        "end": f"{cluster.times[-1]:.3f}",
        "step": str(cluster.scrape_seconds),
    }
    answer = client.post("/api/v1/query_range", data=parameters).json()
    if answer["status"] != "success":
        raise RuntimeError(f"{rule.name}: {answer['error']}")
    for series in answer["data"]["result"]:
        labels = {key: value for key, value in series["metric"].items() if key != "__name__"}
        values = _take_at_scrapes(series["values"], cluster)
        if rule.is_alert:
            values = _firing(values, rule.for_seconds, cluster.scrape_seconds)
            # A template asks whether the job is quiet; the jobs here are not.
            templated = {k: "critical" for k in rule.labels if "{{" in rule.labels[k]}
            labels |= {"alertname": rule.name} | rule.labels | templated
            if not np.isnan(values).all():
                yield Samples(labels | {"__name__": _BEGIN}, _begins(values, cluster))
            labels |= {"__name__": "ALERTS", "alertstate": "firing"}
        else:
            labels |= {"__name__": rule.name} | rule.labels
        if not np.isnan(values).all():
            yield Samples(labels, values)


def _begins(firing: Values, cluster: Cluster) -> Values:
    """When an alert that fires began to, at each scrape."""
    begins = np.full_like(firing, np.nan)
    for index, value in enumerate(firing):
        if not np.isnan(value):
            goes_on = index > 0 and not np.isnan(begins[index - 1])
            begins[index] = begins[index - 1] if goes_on else cluster.times[index]
    return begins


def _take_at_scrapes(points: list[tuple[float, str]], cluster: Cluster) -> Values:
    values = np.full_like(cluster.times, np.nan)
    for time, value in points:
        values[round((time - cluster.times[0]) / cluster.scrape_seconds)] = float(value)
    return values


def _firing(values: Values, for_seconds: float, scrape_seconds: int) -> Values:
    """1 where the expression has had a value for as long as the alert waits, else absent."""
    firing, held_seconds = np.full_like(values, np.nan), -1.0
    for index, value in enumerate(values):
        held_seconds = held_seconds + scrape_seconds if held_seconds >= 0 else 0.0
        if np.isnan(value):
            held_seconds = -1.0
        elif held_seconds >= for_seconds:
            firing[index] = 1.0
    return firing
