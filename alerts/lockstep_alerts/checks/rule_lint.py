"""Lint of the rules beyond promtool's: what is right in a quiet hour and wrong after a restart."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from lockstep_prometheus.promql import (
    AggregateExpr,
    BinaryExpr,
    Expr,
    MatrixSelector,
    NumberLiteral,
    ParenExpr,
    SubqueryExpr,
    children,
    nodes,
    parse,
    selectors,
)

_METACHARACTERS = set(".*+?()[]{}|^$\\")


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
    try:
        tree = parse(rule["expr"])
    except ValueError as error:
        yield str(error)
        return
    for selector in selectors(rule["expr"]):
        for label, operator, value in selector.matchers:
            if operator in ("=~", "!~") and not _METACHARACTERS & set(value):
                yield f"{label} is compared by a pattern with {value!r}; write an equality"
        if selector.name in foreign and not selector.range_seconds:
            yield (
                f"{selector.name} is recorded in another group; say by last_over_time how old "
                "it may be"
            )
    for divisor in _aggregated_divisors(tree):
        yield f"{divisor} may be 0 in an aggregation, and 0 / 0 spoils it; write (... > 0)"
    if "alert" in rule and "for" not in rule:
        for comparison in filter(_is_upper_bound_of_window, nodes(tree)):
            text = comparison.prettify()
            yield f"a restart empties the window before {text!r}; give the alert a for"


def _aggregated_divisors(node: Expr, is_aggregated: bool = False) -> Iterator[str]:
    """Divisors below an aggregation that may be 0."""
    is_aggregated = is_aggregated or isinstance(node, AggregateExpr)
    if isinstance(node, BinaryExpr) and is_aggregated and str(node.op) == "/":
        yield from () if _is_guarded(node.rhs) else (node.rhs.prettify(),)
    for child in children(node):
        yield from _aggregated_divisors(child, is_aggregated)


def _is_guarded(divisor: Expr) -> bool:
    while isinstance(divisor, ParenExpr):
        divisor = divisor.expr
    if isinstance(divisor, BinaryExpr) and str(divisor.op) == ">":
        return isinstance(divisor.rhs, NumberLiteral) and divisor.rhs.val == 0
    return isinstance(divisor, NumberLiteral)


def _is_upper_bound_of_window(node: Expr) -> bool:
    """Whether a window, and nothing computed of it and others, is compared from above.

    One that a restart has emptied holds less than it should: only a lower bound is passed so.
    """
    if not isinstance(node, BinaryExpr) or str(node.op) not in ("<", "<=", "=="):
        return False
    # Of what is never negative, to be 0 is an upper bound, and to be 1 is none.
    if str(node.op) == "==" and not (isinstance(node.rhs, NumberLiteral) and node.rhs.val == 0):
        return False
    operands = list(nodes(node.lhs))
    return any(isinstance(each, MatrixSelector | SubqueryExpr) for each in operands) and not any(
        isinstance(each, BinaryExpr) for each in operands
    )
