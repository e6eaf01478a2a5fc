"""The rendered rule files as groups, and what a ruler that lacks a word is given instead."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from lockstep_alerts.reading.entry import SpecError
from lockstep_catalogue import METRICS
from lockstep_catalogue.metric import Kind

RULES_SUFFIX = ".rules.yaml"
_HISTOGRAMS = "|".join(metric.name for metric in METRICS if metric.kind is Kind.HISTOGRAM)
_BUCKETS = re.compile(rf"\b({_HISTOGRAMS})_bucket\b")
_PARTS = re.compile(rf"\brate\(({_HISTOGRAMS})_(sum|count)((?:\{{[^{{}}]*\}})?\[\w+\])\)")
_BY_BOUND = re.compile(r"\bby \(([^()]*)\)")

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
    # A native histogram is one series: its sum and its count are functions of it.
    expression = _PARTS.sub(r"histogram_\2(rate(\1\3))", expression)
    if not _BUCKETS.search(expression):
        return expression
    if re.search(r"\ble(=|!)", expression):
        raise SpecError(
            f"{expression}: selects buckets by their bound, which --histograms native has none of; "
            "leave the option out, or count something else"
        )
    return _BY_BOUND.sub(_drop_bound, _BUCKETS.sub(r"\1", expression))


def _drop_bound(matched: re.Match[str]) -> str:
    labels = [label for label in matched[1].split(", ") if label != "le"]
    return f"by ({', '.join(labels)})"
