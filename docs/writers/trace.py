"""The way of a metric: ``make trace METRIC=name`` prints each place that declares or reads it."""

import re
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from lockstep_catalogue import METRICS_NAMED, RECORDED, Metric
from writers.readers import constant_of, panels_of, report_names, rules_of

_ROOT = Path(__file__).parents[2]
_SETTERS = ("instrumentation", "records", "agent", "ledger")


def _find_lines(folder: str, pattern: str) -> Iterator[str]:
    """Places in a component's Python, as FILE:LINE: TEXT."""
    for path in sorted((_ROOT / folder).rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if re.search(pattern, line):
                yield f"{path.relative_to(_ROOT)}:{number}: {line.strip()}"


def trace(metric: Metric) -> Iterator[tuple[str, list[str]]]:
    """The places of a metric by what is done there."""
    _, constant = constant_of(metric).split(".")
    words = [rf"\b{constant}\b", *([rf'"{metric.page_field}"'] if metric.page_field else [])]
    pattern = "|".join(words)
    recorded = {each.name for each in RECORDED}
    rules = rules_of(metric)
    suffix = re.escape(metric.name.removeprefix("lockstep"))
    yield "declared", list(_find_lines("catalogue", rf'"[a-z]*{suffix}"|^{constant} = '))
    yield "set", [line for folder in _SETTERS for line in _find_lines(folder, pattern)]
    yield "recorded", [rule for rule in rules if rule in recorded]
    yield "alerted on", [rule for rule in rules if rule not in recorded]
    yield "drawn", [f"{panel.board}: {panel.title}" for panel in panels_of((metric,))]
    is_reported = metric.name in report_names()
    yield "reported", list(_find_lines("reports", rf"\b{constant}\b")) if is_reported else []
    yield "for users", [metric.for_users] if metric.for_users else []


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in METRICS_NAMED:
        close = ", ".join(get_close_matches(name, METRICS_NAMED))
        is_recorded = name in {each.name for each in RECORDED}
        refusal = "a recorded series, no metric" if is_recorded else "not in the catalogue"
        near = f"near it: {close}" if close else "docs/metrics.md lists all metrics"
        sys.exit(f"METRIC={name} is {refusal}; {near}")
    for heading, places in trace(METRICS_NAMED[name]):
        if places:
            sys.stdout.write(f"{heading}\n" + "".join(f"  {each}\n" for each in places))
