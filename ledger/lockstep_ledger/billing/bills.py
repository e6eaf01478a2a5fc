"""Bills that readers get: costs of a period, and the statement of a month, over one store."""

from collections.abc import Iterable
from datetime import date
from typing import Any

import msgspec
from sqlalchemy import Connection

from lockstep_ledger.billing.costs import LINE_COLUMNS, CostQuestion, Costs, group, line_row
from lockstep_ledger.billing.lines import Line, accrue, read_intervals
from lockstep_ledger.billing.plans import RECENT_SECONDS, Period, count_capacity, judge_budgets
from lockstep_ledger.store.queries import Limits
from lockstep_outcomes.prices.calendar import day_of, last_day, parse_month
from lockstep_outcomes.prices.price import Pricing


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """A month: its lines in ``LINE_COLUMNS``, totals by currency, and what was planned.

    Attributes:
        rate_card: digest of the card that prices the lines.
    """

    month: str
    timezone: str
    rate_card: str
    lines: list[dict[str, Any]]
    totals: list[dict[str, Any]]
    budgets: list[dict[str, Any]]
    capacity: list[dict[str, Any]]


class Bills:
    """Bills of one store, read at one moment.

    Args:
        now: up to which running jobs cost.
        limits: of the reader; who sees some jobs only sees no capacity, and the budgets of his
            projects where he sees all of their jobs.
    """

    def __init__(
        self, connection: Connection, pricing: Pricing, now: float, *,
        limits: Limits | None = None,
    ) -> None:  # fmt: skip
        self._connection, self._pricing, self._now = connection, pricing, now
        self.today, self._limits = day_of(now, pricing.zone), limits or {}

    def costs(self, question: CostQuestion) -> Costs:
        """The costs that a question asks for."""
        return group(self.lines(question.first, question.last), question)

    def lines(self, first: date, last: date) -> list[Line]:
        """Lines of all months that the days touch."""
        period = self._period(first.replace(day=1), last_day(last))
        return self._accrue(period.begin, period.end)

    def statement(self, month: str) -> Statement:
        """Lines, totals, budgets and capacity of a month.

        Raises:
            ValueError: the text is not a month.
        """
        first = parse_month(month)
        period = self._period(first, last_day(first))
        lines = self._accrue(period.begin, period.end)
        everything = CostQuestion(
            first=period.first, last=period.last, by=(), sort="amount", chosen={}
        )
        card, limits = self._pricing.card, self._limits
        recent = self._accrue(self._now - RECENT_SECONDS, self._now)
        budgets = [
            budget
            for budget in judge_budgets(card, period, lines, recent)
            if not limits or budget["project"] in limits.get("project", ())
        ]
        return Statement(
            month=month,
            timezone=str(self._pricing.zone),
            rate_card=card.digest,
            lines=[dict(zip(LINE_COLUMNS, line_row(line), strict=True)) for line in lines],
            totals=group(lines, everything).totals,
            budgets=[] if "cluster" in limits else budgets,
            capacity=[] if limits else count_capacity(card, period, lines),
        )

    def _accrue(self, begin: float, end: float) -> list[Line]:
        lines = accrue(read_intervals(self._connection, begin, end), self._pricing, begin, end)
        return self._visible(lines)

    def _period(self, first: date, last: date) -> Period:
        return Period(first=first, last=last, zone=self._pricing.zone, now=self._now)

    def _visible(self, lines: Iterable[Line]) -> list[Line]:
        limits = self._limits.items()
        return [line for line in lines if all(line.value(n) in values for n, values in limits)]
