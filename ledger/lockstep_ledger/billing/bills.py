"""Bills that readers get: costs of a period, and the statement of a month with what was planned."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import date, tzinfo
from typing import Any

import msgspec
from sqlalchemy import Connection

from lockstep_ledger.billing.costs import (
    LINE_COLUMNS,
    CostQuestion,
    Costs,
    Line,
    accrue,
    group,
    line_row,
    read_intervals,
)
from lockstep_ledger.store.queries import Limits
from lockstep_outcomes.prices.calendar import (
    begin_of,
    day_of,
    end_of,
    last_day,
    parse_month,
    split_days,
)
from lockstep_outcomes.prices.price import HOUR_SECONDS, Pricing
from lockstep_outcomes.prices.rate_card import RateCard, match_model

RECENT_SECONDS = 7 * 86_400.0


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """The days of a statement, the last one too; what lies behind ``now`` has not happened."""

    first: date
    last: date
    zone: tzinfo
    now: float

    @property
    def begin(self) -> float:
        """Its first moment."""
        return begin_of(self.first, self.zone)

    @property
    def end(self) -> float:
        """Its end, or now where that comes before."""
        return min(end_of(self.last, self.zone), self.now)


def judge_budgets(
    card: RateCard, period: Period, lines: Iterable[Line], recent: Iterable[Line]
) -> list[dict[str, Any]]:
    """What each budget of a month has left, and what the month will have cost at its end.

    ``forecast`` goes on as the month did so far, ``recent_forecast`` as the last seven days did;
    both are None once the month is over. Days with 23 or 25 hours count as long as they are.
    """
    left, elapsed = end_of(period.last, period.zone) - period.end, period.end - period.begin
    spent, lately = _sum_by_payer(lines), _sum_by_payer(recent)
    rows = sorted(card.budgets, key=lambda row: row.begin)
    newest = {(row.project, row.currency): row for row in rows if row.begin <= period.first}
    judged = []
    for (project, currency), row in newest.items():
        sum_spent, is_open = spent[project, currency], left > 0 and elapsed > 0
        rate = lately[project, currency] / RECENT_SECONDS
        judged.append(
            {
                "project": project,
                "currency": currency,
                "budget": row.amount,
                "spent": sum_spent,
                "left": row.amount - sum_spent,
                "forecast": sum_spent / elapsed * (elapsed + left) if is_open else None,
                "recent_forecast": sum_spent + rate * left if is_open else None,
            }
        )
    return judged


def _sum_by_payer(lines: Iterable[Line]) -> dict[tuple[str, str], float]:
    """Amounts by project and currency, and of all projects as ``*``."""
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for line in lines:
        for project in {"*", line.job.project}:
            sums[project, line.currency] += line.amount
    return sums


def count_capacity(card: RateCard, period: Period, lines: Iterable[Line]) -> list[dict[str, Any]]:
    """GPU hours that a cluster had in the period so far, next to those that jobs had of them.

    ``idle`` is installed minus drained minus allocated; negative where jobs had more GPUs than the
    card knows. Reserved GPUs count as allocated or idle like any other.
    """
    kinds = ("installed", "reserved", "drained", "allocated")
    seconds: dict[tuple[str, str], dict[str, float]] = {}
    rows = sorted(card.capacity, key=lambda row: row.begin)
    own = list(lines)
    for day, begin, end in split_days(period.begin, period.end, period.zone):
        newest = {(row.cluster, row.gpu_model): row for row in rows if row.begin <= day}
        for key, row in newest.items():
            sums = seconds.setdefault(key, dict.fromkeys(kinds, 0.0))
            for kind in kinds[:3]:
                sums[kind] += getattr(row, kind) * (end - begin)
            sums["allocated"] += sum(
                line.days[str(day)]
                for line in own
                if str(day) in line.days
                and line.job.cluster == row.cluster
                and match_model(line.job.gpu_model, row.gpu_model)
            )
    counted = []
    for (cluster, gpu_model), sums in seconds.items():
        sums["idle"] = sums["installed"] - sums["drained"] - sums["allocated"]
        hours = {f"{kind}_gpu_hours": each / HOUR_SECONDS for kind, each in sums.items()}
        counted.append({"cluster": cluster, "gpu_model": gpu_model, **hours})
    return counted


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
        intervals = read_intervals(self._connection, begin, end, self._now)
        return self._visible(accrue(intervals, self._pricing, begin, end))

    def _period(self, first: date, last: date) -> Period:
        return Period(first=first, last=last, zone=self._pricing.zone, now=self._now)

    def _visible(self, lines: Iterable[Line]) -> list[Line]:
        limits = self._limits.items()
        return [line for line in lines if all(line.value(n) in values for n, values in limits)]
