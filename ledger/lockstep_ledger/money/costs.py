"""Costs by user, project, outcome, cause of waste and the like; each figure is a sum of lines."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from decimal import ROUND_FLOOR, Decimal
from operator import itemgetter
from typing import Any

import msgspec

from lockstep_ledger.money.accrual import Line, round_money
from lockstep_ledger.money.calendar import read_range

WASTED_STATES = frozenset(("straggler_wait", "restore", "rework", "hang", "recovery", "idle"))
"""States in which GPUs that somebody pays for bring no training forward, whoever is to blame."""
CHOSEN = ("cluster", "project", "user", "queue", "job_class")
"""Fields of lines by which they are chosen, each by one value."""
DIMENSIONS = (*CHOSEN, "gpu_model", "outcome", "failure_class", "cause", "job_id", "month", "day",
              "state")  # fmt: skip
"""What costs can be grouped by; ``state`` is the cause of waste."""
MEASURES = ("gpu_hours", "wasted_gpu_hours", "amount", "wasted_amount")
QUESTION = ("month", "from", "to", "by", "sort", *CHOSEN)
"""What a question about costs may name."""
_HOUR_SECONDS, _HOURS = Decimal(3600), Decimal("0.01")


class CostQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Days (the last counts too), dimensions, order, and the only values of some fields."""

    first: date
    last: date
    by: tuple[str, ...]
    sort: str
    chosen: dict[str, str]


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of a period.

    Attributes:
        rows: the dimensions, the currency, and the measures; an amount is never over two
            currencies. Without a price the currency is empty.
        totals: the measures by currency, of which the rows are parts to the last coin.
    """

    rows: list[dict[str, Any]]
    totals: list[dict[str, Any]]


def read_question(given: Mapping[str, str], today: date) -> CostQuestion:
    """The question of a query or of options, all texts; by project in the month that runs.

    Raises:
        ValueError: one sentence on the value that is wrong.
    """
    by = tuple(given.get("by", "project").split(","))
    sort = given.get("sort", "amount")
    if len(set(by)) < len(by) or not set(by) <= set(DIMENSIONS):
        raise ValueError(f"by={','.join(by)!r:.80} must be some of {', '.join(DIMENSIONS)}")
    if sort not in {*by, *MEASURES}:
        raise ValueError(f"sort={sort!r:.80} must be one of {', '.join((*by, *MEASURES))}")
    first, last = read_range(given.get("month"), given.get("from"), given.get("to"), today)
    chosen = {name: given[name] for name in CHOSEN if name in given}
    return CostQuestion(first=first, last=last, by=by, sort=sort, chosen=chosen)


def group(lines: Iterable[Line], question: CostQuestion) -> Costs:
    """The costs that a question asks for, of the lines of all months that its days touch.

    A day or a state is a part of a line. So that parts add up to their total, each is rounded down
    to the smallest coin, and the coins that remain go to those that lost most of one.
    """
    by, cells = question.by, dict[tuple[str, ...], list[Decimal]]()
    for line in lines:
        if any(line.value(name) != value for name, value in question.chosen.items()):
            continue
        for key, share, wasted in _parts(line, question):
            sums = cells.setdefault((line.currency, *key), [Decimal(0)] * len(MEASURES))
            hours, amount = line.gpu_seconds / _HOUR_SECONDS * share, line.amount * share
            for index, value in enumerate((hours, hours * wasted, amount, amount * wasted)):
                sums[index] += value
    rows, totals = [], []
    for currency in sorted({key[0] for key in cells}):
        own = {key: sums for key, sums in sorted(cells.items()) if key[0] == currency}
        total, parts = _rounded(currency, list(own.values()))
        totals.append({"currency": currency, **total})
        of_currency = [
            dict(zip(("currency", *by), key, strict=True)) | part
            for key, part in zip(own, parts, strict=True)
        ]
        rows += sorted(
            of_currency, key=itemgetter(question.sort), reverse=question.sort in MEASURES
        )
    return Costs(rows=rows, totals=totals)


def _parts(
    line: Line, question: CostQuestion
) -> Iterator[tuple[tuple[str, ...], Decimal, Decimal]]:
    """Key of each part of a line, its share of the line, and which share of it is waste."""
    first, last = str(question.first), str(question.last)
    days = {day: share for day, share in _shares(line.days).items() if first <= day <= last}
    states = {
        state: (share, Decimal(state in WASTED_STATES))
        for state, share in _shares(line.states).items()
    }
    if "day" not in question.by:
        days = {"": sum(days.values(), Decimal(0))}
    if "state" not in question.by:
        wasted = sum((share * is_wasted for share, is_wasted in states.values()), Decimal(0))
        states = {"": (Decimal(1), wasted)}
    for day, day_share in days.items():
        for state, (state_share, wasted) in states.items() if day_share else ():
            own = {"day": day, "state": state}
            key = tuple(own[name] if name in own else line.value(name) for name in question.by)
            yield key, day_share * state_share, wasted


def _shares(weights: Mapping[str, Decimal]) -> dict[str, Decimal]:
    total = sum(weights.values(), Decimal(0))
    return {name: weight / total for name, weight in weights.items()}


def _rounded(
    currency: str, values: list[list[Decimal]]
) -> tuple[dict[str, Decimal], list[dict[str, Decimal]]]:
    """Total of each measure, and the measures of each row, which add up to it."""
    total: dict[str, Decimal] = {}
    rows: list[dict[str, Decimal]] = [{} for _ in values]
    for index, name in enumerate(MEASURES):
        column = [row[index] for row in values]
        exact = sum(column, Decimal(0))
        is_money = name.endswith("amount")
        total[name] = round_money(exact, currency) if is_money else exact.quantize(_HOURS)
        for row, part in zip(rows, apportion(total[name], column), strict=True):
            row[name] = part
    return total, rows


def apportion(total: Decimal, parts: Sequence[Decimal]) -> list[Decimal]:
    """The parts, in coins of the total, so that they add up to it: by largest remainders."""
    floors = [part.quantize(total, ROUND_FLOOR) for part in parts]
    coin = Decimal(1).scaleb(int(total.as_tuple().exponent))
    missing = int((total - sum(floors, Decimal(0))) / coin)
    for index in sorted(range(len(parts)), key=lambda i: floors[i] - parts[i])[:missing]:
        floors[index] += coin
    return floors
