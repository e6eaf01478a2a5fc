"""The rendered rule files as groups, and what a ruler that lacks a word is given instead."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from lockstep_alerts.reading.entry import SpecError
from lockstep_catalogue import METRICS
from lockstep_catalogue.metric import Kind
from lockstep_catalogue.promql import LE
from lockstep_prometheus.promql import (
    AggregateExpr,
    Call,
    Expr,
    Selector,
    VectorSelector,
    nodes,
    rewrite,
    selectors,
)

RULES_SUFFIX = ".rules.yaml"
_HISTOGRAMS = {metric.name for metric in METRICS if metric.kind is Kind.HISTOGRAM}

Group = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleFile:
    """One rule file: its name without suffix, and its groups in order."""

    stem: str
    groups: tuple[Group, ...]


def rule_files(files: Mapping[str, str]) -> Iterator[RuleFile]:
    """The rule files among rendered files."""
    for name, text in files.items():
        if name.endswith(RULES_SUFFIX):
            groups = yaml.safe_load(text)["groups"]
            yield RuleFile(stem=name.removesuffix(RULES_SUFFIX), groups=tuple(groups))


def drop_words(file: RuleFile, words: tuple[str, ...]) -> RuleFile:
    """The file for a ruler that refuses these words, such as ``keep_firing_for``.

    An alert without ``keep_firing_for`` resolves as soon as its condition does. It is not written
    into the expression: over a window a condition that held for a moment would reach ``for``.
    """

    def plain(fields: Group) -> Group:
        return {name: value for name, value in fields.items() if name not in words}

    groups = tuple(
        plain({**group, "rules": [plain(rule) for rule in group["rules"]]}) for group in file.groups
    )
    return RuleFile(stem=file.stem, groups=groups)


def with_native_histograms(file: RuleFile) -> RuleFile:
    """The file for a Prometheus that stores histograms as native ones with custom buckets."""
    groups = tuple(
        {**group, "rules": [{**rule, "expr": native(rule["expr"])} for rule in group["rules"]]}
        for group in file.groups
    )
    return RuleFile(stem=file.stem, groups=groups)


def native(expression: str) -> str:
    """An expression over classic buckets as one over native histograms: no buckets, no bounds.

    Raises:
        SpecError: it selects single buckets, which a native histogram has none of.
    """
    reads = list(selectors(expression))
    if any(_part(each.name)[1] == "bucket" and _has_bound(each) for each in reads):
        raise SpecError(
            f"{expression}: selects buckets by their bound, which --histograms native has none of; "
            "leave the option out, or count something else"
        )
    return rewrite(expression, _as_native)


def _part(name: str) -> tuple[str, str]:
    """A histogram and ``bucket``, ``sum`` or ``count``, of the name of one of its series."""
    base, _, part = name.rpartition("_")
    return (base, part) if base in _HISTOGRAMS else (name, "")


def _has_bound(selector: Selector) -> bool:
    return any(label == LE.name for label, _, _ in selector.matchers)


def _as_native(node: Expr) -> str | None:
    """What a node is over native histograms; None of what stays.

    A native histogram is one series: its sum and its count are functions of it.
    """
    match node:
        case VectorSelector():
            name, part = _part(node.name or "")
            return str(node).replace(node.name or "", name, 1) if part == "bucket" else None
        case Call() if node.func.name == "rate":
            [selector] = (each for each in nodes(node) if isinstance(each, VectorSelector))
            name, part = _part(selector.name or "")
            if part in ("sum", "count"):
                return f"histogram_{part}({str(node).replace(f'{name}_{part}', name, 1)})"
        case AggregateExpr() if node.modifier and LE.name in node.modifier.labels:
            labels = ", ".join(label for label in node.modifier.labels if label != LE.name)
            parameter = "" if node.param is None else f"{node.param}, "
            return f"{node.op} by ({labels}) ({parameter}{node.expr})"
    return None
