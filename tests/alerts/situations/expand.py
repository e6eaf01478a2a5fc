"""Runs situations through the rules: series in, alerts with labels out, judged as on-call would."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lockstep_alerts.output import render, write_files
from lockstep_alerts.reading.model import Delivery, Duration, group_wait_seconds
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec

from .fleet import SITUATIONS, Series, build
from .ruler import Ruler, prometheus
from .timelines import seconds

Labels = dict[str, str]
SEVERITIES = {"critical": "pages", "warning": "tickets"}
MAX_INSTANTS = 2000


@dataclass(frozen=True, kw_only=True)
class Paging:
    """What stands between rules and people: rule files, grouping, the group's wait."""

    rule_files: Sequence[Path]
    group_by: Mapping[str, Sequence[str]] = field(
        default_factory=lambda: {
            "pages": ("cluster", "incident"),
            "tickets": ("cluster", "alertname"),
        }
    )
    group_wait_seconds: float = 0.0


def shipped(scrape: float, folder: Path) -> Paging:
    """Rules, grouping and waits as `lockstep alerts generate` writes them."""
    spec = read_spec(spec_path(), Duration(f"{scrape:g}s"))
    files = render(spec, Delivery())
    write_files(folder, files)
    return Paging(
        rule_files=sorted(folder.glob("*.rules.yaml")),
        group_wait_seconds=group_wait_seconds("critical", spec.windows.evaluation_seconds),
    )


@dataclass(frozen=True)
class Notified:
    """An alert that reached people at a time."""

    time: float
    kind: str
    labels: Mapping[str, str]


def situations() -> list[dict[str, Any]]:
    """All situations of alerts/situations, each with the file that it stands in."""
    found = []
    for path in sorted(SITUATIONS.glob("*.yaml")):
        for situation in yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader):
            found.append(situation | {"subject": path.stem})  # noqa: PERF401 # reads as it runs
    return found


def span(time: str, scrape: float) -> tuple[float, float]:
    """Start and end in seconds of an instant or of a range FROM-TO."""
    start, _, end = str(time).partition("-")
    return seconds(start, scrape), seconds(end or start, scrape)


def end_of(situation: Mapping[str, Any], scrape: float) -> float:
    """Seconds until the last expectation of a situation."""
    return max(span(entry["time"], scrape)[1] for entry in situation["at"])


def _instants(time: str, scrape: float) -> list[float]:
    """Evaluations in a time; a range ends before its end, as the segments of timelines do."""
    start, until = span(time, scrape)
    is_range = until > start
    # At a moment between two evaluations what the first of them found stands.
    last = int((until - scrape / 2 if is_range else until) // scrape)
    begin = start if is_range else last * scrape
    first = min(int(-(-begin // scrape)), last)
    every = max(1, (last - first) // MAX_INSTANTS + 1)
    return [index * scrape for index in range(first, last + 1, every)]


def run(situation: Mapping[str, Any], scrape: float, paging: Paging) -> list[str]:
    """What differs from the expectation at this interval, one sentence each."""
    length = end_of(situation, scrape) + scrape
    series = build_read(situation, scrape, length, paging)
    notified = through_alertmanager(run_ruler(series, scrape, length, paging), paging, scrape)
    return [
        f"{situation['name']} {problem}"
        for entry in situation["at"]
        for problem in judge(entry, notified, scrape, paging)
    ]


def build_read(
    situation: Mapping[str, Any], scrape: float, length: float, paging: Paging
) -> list[Series]:
    read = "\n".join(path.read_text(encoding="utf-8") for path in paging.rule_files)
    return build(situation, scrape, length, read=read)


def run_ruler(
    series: Sequence[Series], scrape: float, length: float, paging: Paging
) -> dict[float, list[Labels]]:
    """Alerts that fire, by second, where a Prometheus is there to evaluate them."""
    with (
        tempfile.TemporaryDirectory() as folder,
        prometheus(Path(folder)) as url,
        closing(Ruler(url, scrape, length)) as ruler,
    ):
        ruler.load(series)
        return ruler.firing(paging.rule_files)


def through_alertmanager(
    firing: Mapping[float, list[Labels]], paging: Paging, scrape: float
) -> list[Notified]:
    """Alerts that notify: they fire at each evaluation of the group's wait before that time."""
    reached: dict[float, dict[str, Labels]] = {
        time: {json.dumps(alert, sort_keys=True): alert for alert in alerts}
        for time, alerts in firing.items()
    }
    waits = [index * scrape for index in range(1, int(paging.group_wait_seconds // scrape) + 1)]
    return [
        Notified(time, SEVERITIES[alert["severity"]], alert)
        for time, alerts in sorted(reached.items())
        for key, alert in alerts.items()
        if alert.get("severity") in SEVERITIES
        and all(key in reached.get(time - wait, {}) for wait in waits)
    ]


def judge(
    entry: Mapping[str, Any], notified: Sequence[Notified], scrape: float, paging: Paging
) -> list[str]:
    """Compare one expectation with what was notified in its time."""
    instants = _instants(entry["time"], scrape)
    reached = [item for item in notified if instants[0] <= item.time <= instants[-1]]
    head = f"[{scrape:g} s, {entry['time']}]"
    problems = []
    for kind in ("pages", "tickets"):
        expected = [] if entry.get("silent") else entry.get(kind)
        if expected is None and kind == "pages":
            expected = []
        if expected is None or expected == "any":
            continue
        items = [item for item in reached if item.kind == kind]
        problems += [f"{head}: {text}" for text in _compare(kind, expected, items, paging)]
    return problems


def _compare(
    kind: str, expected: Sequence[Mapping[str, Any]], items: Sequence[Notified], paging: Paging
) -> list[str]:
    problems, covered = [], set()
    for target in expected:
        found = [item for item in items if _names(item.labels, target)]
        groups = {
            tuple(item.labels.get(label, "") for label in paging.group_by[kind]) for item in found
        }
        covered |= {id(item) for item in found}
        if not found and not target.get("optional"):
            problems.append(f"{kind} lack {dict(target)}")
        if kind == "pages" and len(groups) > 1:
            problems.append(f"{dict(target)} is {len(groups)} notifications: {sorted(groups)}")
    surplus = [item for item in items if id(item) not in covered]
    if surplus:
        first = surplus[0]
        names = sorted({item.labels["alertname"] for item in surplus})
        problems.append(
            f"{kind} nobody expects: {names}, first at {first.time:g} s {dict(first.labels)}"
        )
    return problems


def _names(labels: Mapping[str, str], target: Mapping[str, Any]) -> bool:
    for name, value in target.items():
        if name == "optional":
            continue
        label = "alertname" if name == "alert" else name
        if labels.get(label, "") not in (value if isinstance(value, list) else [value]):
            return False
    return True
