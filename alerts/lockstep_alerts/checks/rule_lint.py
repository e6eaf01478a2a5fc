"""Lint of the rules beyond promtool's: what is right in a quiet hour and wrong after a restart.

It reads the generated PromQL by its brackets and operators: every operand is in the shape that
``lockstep_catalogue.promql`` writes.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

_PATTERN = re.compile(r'(\w+)(?:=~|!~)"([^"]*)"')
_METACHARACTERS = set(".*+?()[]{}|^$\\")
_READ = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{[^}]*\})?(\[)?")
_AGGREGATION = re.compile(
    r"\b(?:sum|avg|min|max|group|count|quantile|topk)\b[^()]*(?:\([\w, ]*\) )?\("
)
_DIVISION = re.compile(r" / (?:on \([\w, ]*\) (?:group_(?:left|right) \([\w, ]*\) )?)?")
_GUARDED = re.compile(r"\(.* > 0\)|[0-9.e-]+", re.DOTALL)
# A window that a restart has emptied holds less than it should: only a lower bound is passed so.
_BELOW = re.compile(r"\[\w+(?::\w+)?\]\)*(?: offset \w+)? (?:<=?|==) ")


def findings(rule_files: list[Path]) -> Iterator[str]:
    """One sentence for each fault of a rule, with the file and the rule's name."""
    listed = [
        (path, group)
        for path in rule_files
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    ]
    recorded = [
        {rule["record"] for rule in group["rules"] if "record" in rule} for _, group in listed
    ]
    for (path, group), own in zip(listed, recorded, strict=True):
        foreign = set().union(*recorded) - own
        for rule in group["rules"]:
            name = rule.get("alert") or rule["record"]
            for fault in _faults(rule, foreign):
                yield f"{path.name}: {name}: {fault}"


def _faults(rule: Mapping[str, Any], foreign: set[str]) -> Iterator[str]:
    expression: str = rule["expr"]
    for label, value in _PATTERN.findall(expression):
        if not _METACHARACTERS & set(value):
            yield f"{label} is compared by a pattern with {value!r}; write an equality"
    for name, window in _READ.findall(expression):
        if name in foreign and not window:
            yield f"{name} is recorded in another group; say by last_over_time how old it may be"
    for inside in map(_operand, _ends(_AGGREGATION, expression), [expression] * len(expression)):
        for begin in _ends(_DIVISION, inside):
            divisor = _operand(begin, inside)
            if not _GUARDED.fullmatch(divisor):
                yield f"{divisor} may be 0 in an aggregation, and 0 / 0 spoils it; write (... > 0)"
    if "alert" in rule and "for" not in rule and (found := _BELOW.search(expression)):
        yield f"a restart empties the window before {found[0].strip()!r}; give the alert a for"


def _ends(pattern: re.Pattern[str], text: str) -> list[int]:
    """Where what follows each match begins; an opening bracket belongs to what follows."""
    return [found.end() - found[0].endswith("(") for found in pattern.finditer(text)]


def _operand(begin: int, text: str) -> str:
    """The operand at a place: a number, or all up to the bracket that closes it."""
    depth = 0
    for end in range(begin, len(text)):
        depth += (text[end] == "(") - (text[end] == ")")
        if depth < 0 or (depth == 0 and text[end] == " "):
            return text[begin:end]
        if depth == 0 and text[end] == ")":
            return text[begin : end + 1]
    return text[begin:]
