"""Readers of each series: rules and panels by the generated files, reports by their sources."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lockstep_catalogue import METRIC_MODULES, RECORDED, Metric, Recorded, recorded

_REPOSITORY = Path(__file__).parents[2]
_WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_CONSTANT = re.compile(r"\b[a-z_]+\.[A-Z][A-Z0-9_]+\b")

# Sloth's public names, for its boards; and the aggregate of counters, read where an objective over
# a counter has alerts.
_SLOTH_LEVEL = "slo"
_PUBLIC_SERIES = (recorded.COUNTER_TOTAL, recorded.COUNTER_BAD, recorded.SLO_INFO)


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of a board, and the words of its queries."""

    board: str
    title: str
    words: frozenset[str]


def _panels(panels: list[dict[str, Any]], board: str) -> Iterator[Panel]:
    for panel in panels:
        queries = " ".join(str(target.get("expr", "")) for target in panel.get("targets", ()))
        yield Panel(board, panel.get("title", ""), frozenset(_WORD.findall(queries)))
        yield from _panels(panel.get("panels", []), board)


@cache
def panels() -> tuple[Panel, ...]:
    """Every panel of the generated boards, then what their variables offer."""
    found: list[Panel] = []
    for path in sorted((_REPOSITORY / "dashboards/generated").glob("*.json")):
        board = json.loads(path.read_text(encoding="utf-8"))
        found += _panels(board["panels"], path.stem)
        for variable in board["templating"]["list"]:
            words = frozenset(_WORD.findall(variable.get("definition", "")))
            found.append(Panel(path.stem, f"choice of {variable['label']}", words))
    return tuple(found)


@cache
def rules() -> Mapping[str, frozenset[str]]:
    """The words of each rule's expression and annotations, by the name of the rule."""
    found: dict[str, frozenset[str]] = {}
    for path in sorted((_REPOSITORY / "alerts/generated").glob("*.rules.yaml")):
        for group in yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"]:
            for rule in group["rules"]:
                name = rule.get("alert") or rule["record"]
                text = f"{rule['expr']} {rule.get('annotations', {}).get('description', '')}"
                found[name] = found.get(name, frozenset()) | set(_WORD.findall(text))
    return found


def _names(series: Metric | Recorded) -> set[str]:
    return {series.name, *(series.sample_names if isinstance(series, Metric) else ())}


def panels_of(series: tuple[Metric | Recorded, ...]) -> list[Panel]:
    """The panels that read one of the series."""
    names = set().union(*map(_names, series))
    return [panel for panel in panels() if names & panel.words]


def rules_of(series: Metric | Recorded) -> list[str]:
    """The rules that read the series."""
    return [name for name, words in rules().items() if _names(series) & words]


@cache
def _constants() -> Mapping[str, str]:
    """Module and constant of each metric that has one, such as gpu.GPU_POWER, by its name."""
    return {
        value.name: f"{module.__name__.rpartition('.')[2]}.{constant}"
        for module in (*METRIC_MODULES, recorded)
        for constant, value in vars(module).items()
        if isinstance(value, Metric | Recorded)
    }


def constant_of(metric: Metric) -> str:
    """Module and constant of a metric, such as gpu.GPU_POWER."""
    return _constants()[metric.name]


@cache
def report_names() -> frozenset[str]:
    """The series that the reports' sources name, as attributes of the catalogue's modules."""
    sources = (_REPOSITORY / "reports/lockstep_reports").rglob("*.py")
    words = set(_CONSTANT.findall(" ".join(path.read_text(encoding="utf-8") for path in sources)))
    return frozenset(name for name, constant in _constants().items() if constant in words)


def readers(metric: Metric) -> list[str]:
    """Of rule, panel and report those that read the metric."""
    found = {
        "rule": bool(rules_of(metric)),
        "panel": bool(panels_of((metric,))),
        "report": metric.name in report_names(),
    }
    return [name for name, is_one in found.items() if is_one]


def unread_records() -> list[Recorded]:
    """Recorded series that no rule, panel or report reads."""
    return [
        each
        for each in RECORDED
        if each not in _PUBLIC_SERIES and each.level != _SLOTH_LEVEL
        if not rules_of(each) and not panels_of((each,)) and each.name not in report_names()
    ]
