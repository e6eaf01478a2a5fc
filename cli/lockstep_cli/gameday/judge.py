"""Holds what came of a row against its expectation."""

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from lockstep_cli.gameday.rows import Ledger, Notice, Row
from lockstep_cli.gameday.scene import Observed, Truth

_LOST_WITHIN = 0.05
_CONTENTION, _CONTENDED = "TrainContention", 0.25  # the ratio of the alert's own rule
_LOST_SECONDS = 2.0  # a rank-second each for the end of the first and the start of the next attempt


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One check of a row.

    Attributes:
        column: of the table of results.
        text: what was found; for people.
    """

    column: str
    holds: bool
    text: str


def judge(row: Row, observed: Observed) -> list[Finding]:
    """Every check of a row, in the order of the table's columns."""
    findings = [*_alerts(row, observed), *_notified(row, observed), *_other(row, observed)]
    if row.expect.ledger:
        findings += _ledger(row.expect.ledger, observed)
    if row.expect.report:
        holds = re.search(row.expect.report, observed.headline) is not None
        findings.append(Finding(column="report", holds=holds, text=observed.headline or "none"))
    if row.expect.undisturbed:
        findings += _undisturbed(observed.truth)
    return [*findings, *_resumed(row, observed)]


def _alerts(row: Row, observed: Observed) -> Iterator[Finding]:
    for notice in row.expect.notices:
        found = _first(notice, observed)
        if found is None:
            yield Finding(column="alerts", holds=False, text=f"{notice.alert} as expected: never")
            continue
        seconds = found - observed.truth.began
        holds = 0 <= seconds <= notice.within_seconds
        text = f"{notice.alert} {seconds:.0f} s (≤ {notice.within_seconds:.0f} s)"
        if seconds < 0:
            text = f"{notice.alert} came {-seconds:.0f} s before the failure"
        yield Finding(column="alerts", holds=holds, text=text)


def _first(notice: Notice, observed: Observed) -> float | None:
    arrivals = (
        each.wall_seconds
        for each in observed.notifications
        if each.receiver == notice.to and any(map(notice.matches, each.alerts))
    )
    return next(arrivals, None)


def _notified(row: Row, observed: Observed) -> Iterator[Finding]:
    """How often a person was notified; a resolution and what may come besides do not count."""
    expected = Counter(notice.to for notice in row.expect.notices) | Counter(row.expect.notified)
    may = _may(row, observed)
    counted = Counter(
        each.receiver
        for each in observed.notifications
        if each.status == "firing"
        and any(alert["labels"]["alertname"] not in may for alert in each.alerts)
    )
    for receiver in ("pager", "tickets"):
        number, limit = counted[receiver], row.expect.notified.get(receiver, expected[receiver])
        text = f"{receiver} {number}" + ("" if number == limit else f", {limit} expected")
        yield Finding(column="notified", holds=number == limit, text=text)


def _may(row: Row, observed: Observed) -> set[str]:
    """What may come besides: short of processors is also who shares them with the other rows."""
    is_expected = any(notice.alert == _CONTENTION for notice in row.expect.notices)
    is_contended = observed.truth.machine_waited_ratio > _CONTENDED and not is_expected
    return {*row.expect.may, *((_CONTENTION,) if is_contended else ())}


def _other(row: Row, observed: Observed) -> Iterator[Finding]:
    others = {
        alert["labels"]["alertname"]
        for each in observed.notifications
        for alert in each.alerts
        if alert["status"] == "firing"
    } - {notice.alert for notice in row.expect.notices}
    unexpected, may = others - _may(row, observed), ", ".join(sorted(others))
    text = ", ".join(sorted(unexpected)) or (
        f"yes, but {may} of this machine's load" if may else "yes"
    )
    yield Finding(column="nothing else", holds=not unexpected, text=text)


def _ledger(expected: Ledger, observed: Observed) -> Iterator[Finding]:
    record = observed.record
    if not record:
        yield Finding(column="ledger", holds=False, text="no record")
        return
    failed = next((a for a in record["attempts_list"] if a["failure_class"]), None) or {}
    found = {
        "outcome": record["outcome"],
        "failure_class": failed.get("failure_class"),
        "cause": failed.get("cause") or record["cause"],
        "culprit": _culprit(failed),
        "attempts": record["attempts"],
        "preemptions": record["preemptions"],
    }
    for key, value in found.items():
        right = getattr(expected, key)
        if right not in (None, "") or key == "outcome":
            words = f"{value} {key}" if isinstance(value, int) else f"{value}"
            text = words + ("" if value == right else f", {right} expected")
            yield Finding(column="ledger", holds=value == right, text=text)
    for states, formula in expected.lost.items():
        lost = sum(record["goodput"].get(state, 0.0) for state in states.split("+"))
        truth = evaluate(formula, observed.truth)
        holds = abs(lost - truth) <= max(_LOST_WITHIN * truth, _LOST_SECONDS)
        text = f"{states} {lost:.1f} GPU-s, measured {truth:.1f}"
        yield Finding(column="lost", holds=holds, text=text)


def _culprit(failed: Mapping[str, Any]) -> str:
    ranks = failed.get("cause_ranks") or []
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks}" if ranks else "nobody"


def _resumed(row: Row, observed: Observed) -> Iterator[Finding]:
    expect, truth = row.expect, observed.truth
    if expect.resumed is not None:
        resumed = truth.attempts > 1 and truth.exit_status == 0
        yield Finding(column="resumed", holds=resumed == expect.resumed, text=str(resumed).lower())
    if expect.steps_lost is not None:
        holds = truth.steps_lost <= expect.steps_lost
        text = f"{truth.steps_lost} (≤ {expect.steps_lost})"
        yield Finding(column="steps lost", holds=holds, text=text)


_NOISE = 0.1  # of a step that mostly sleeps, beside other rows


def _undisturbed(truth: Truth) -> Iterator[Finding]:
    before, after = truth.step_before, truth.step_after
    holds = 0 < after <= before * (1 + _NOISE)
    text = f"{before * 1e3:.0f} ms, then {after * 1e3:.0f} ms"
    yield Finding(column="step time", holds=holds, text=text)


_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(formula: str, truth: Truth) -> float:
    """The value of ``(ranks - 1) * 0.1 * fault_steps``; ValueError for anything but arithmetic."""

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return float(node.value)
        if isinstance(node, ast.Name) and hasattr(truth, node.id):
            return float(getattr(truth, node.id))
        raise ValueError(f"{formula!r} is not arithmetic over the truths of a row")

    return value(ast.parse(formula, mode="eval").body)
