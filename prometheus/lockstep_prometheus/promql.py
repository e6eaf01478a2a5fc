"""PromQL as a tree, and the series that an expression reads; binds promql_parser."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import promql_parser as parser
from promql_parser import (
    AggregateExpr,
    BinaryExpr,
    Call,
    Expr,
    MatrixSelector,
    NumberLiteral,
    ParenExpr,
    SubqueryExpr,
    UnaryExpr,
    VectorSelector,
)

from lockstep_catalogue import FOREIGN, METRICS, RECORDED
from lockstep_catalogue.metric import Series

__all__ = [
    "AggregateExpr",
    "BinaryExpr",
    "Call",
    "Expr",
    "MatrixSelector",
    "NumberLiteral",
    "ParenExpr",
    "Selector",
    "SubqueryExpr",
    "UnaryExpr",
    "VectorSelector",
    "children",
    "nodes",
    "parse",
    "rewrite",
    "selectors",
]

# The parser's operators have no hash.
_OPERATORS = {
    "MatchOp.Equal": "=",
    "MatchOp.NotEqual": "!=",
    "MatchOp.Re": "=~",
    "MatchOp.NotRe": "!~",
}
_SERIES: dict[str, Series] = {
    **{name: metric for metric in METRICS for name in metric.sample_names},
    **{series.name: series for series in FOREIGN},
    **{series.name: series for series in RECORDED},
}


@dataclass(frozen=True, slots=True)
class Selector:
    """A part of an expression that reads series.

    Attributes:
        name: under which its samples are stored; empty where only matchers choose.
        matchers: label, operator and value of each.
        range_seconds: how far back it reads, with subqueries around it; 0 for the newest sample.
        function: that takes it, such as ``rate``; empty where none does.
    """

    name: str
    matchers: tuple[tuple[str, str, str], ...]
    range_seconds: float
    function: str = ""

    @property
    def series(self) -> Series | None:
        """The series of the catalogue that has the name; None of another."""
        return _SERIES.get(self.name)


def parse(expression: str) -> Expr:
    """The tree of an expression; a ValueError names what was expected."""
    try:
        return parser.parse(expression)
    except ValueError as error:
        raise ValueError(f"{expression!r} is not PromQL: {error}") from error


def children(node: Expr) -> Iterator[Expr]:
    """The operands of a node, in their order."""
    match node:
        case BinaryExpr():
            yield from (node.lhs, node.rhs)
        case AggregateExpr():
            yield from (node.expr,) if node.param is None else (node.param, node.expr)
        case Call():
            yield from node.args
        case MatrixSelector():
            yield node.vector_selector
        case ParenExpr() | UnaryExpr() | SubqueryExpr():
            yield node.expr


def nodes(node: Expr) -> Iterator[Expr]:
    """The node and all below it, each before its operands."""
    yield node
    for child in children(node):
        yield from nodes(child)


def selectors(expression: str) -> Iterator[Selector]:
    """All selectors of an expression, in their order; ValueError where the text is not PromQL."""
    yield from _selectors(parse(expression), 0.0, "")


def _selectors(node: Expr, range_seconds: float, function: str) -> Iterator[Selector]:
    match node:
        case VectorSelector():
            yield _selector(node, range_seconds, function)
            return
        case MatrixSelector():
            range_seconds += node.range.total_seconds()
        case SubqueryExpr():
            range_seconds += node.range.total_seconds() if node.range else 0.0
        case Call():
            function = node.func.name
        case _:
            function = ""
    for child in children(node):
        yield from _selectors(child, range_seconds, function)


def _selector(node: VectorSelector, range_seconds: float, function: str) -> Selector:
    matchers = tuple(
        (each.name, _OPERATORS[str(each.op)], each.value) for each in node.matchers.matchers
    )
    names = [value for label, test, value in matchers if (label, test) == ("__name__", "=")]
    return Selector(node.name or "".join(names[:1]), matchers, range_seconds, function)


def rewrite(expression: str, change: Callable[[Expr], str | None]) -> str:
    """The expression with nodes, operands first, replaced by what ``change`` gives, if any.

    It is as its parser prints it, unchanged where none is; ValueError where it is not PromQL.
    """
    changed = False

    def replaced(node: Expr) -> Expr | None:
        nonlocal changed
        text = change(node)
        changed = changed or text is not None
        # A node that is changed in place is printed changed, but not taken over into the tree.
        return None if text is None else parse(text)

    tree = parser.transform(parse(expression), None, replaced)
    return tree.prettify() if changed else expression
