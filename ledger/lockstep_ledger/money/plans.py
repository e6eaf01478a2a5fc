"""What was planned next to what came: budgets with a forecast, and capacity as a denominator."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import date, timedelta, tzinfo
from decimal import Decimal
from typing import Any

import msgspec

from lockstep_ledger.money.accrual import Line, round_money
from lockstep_ledger.money.calendar import begin_of, end_of, last_day, split_days
from lockstep_ledger.money.rate_card import RateCard, match_model

RECENT_SECONDS = 7 * 86_400.0
_HOUR_SECONDS, _HOURS = Decimal(3600), Decimal("0.01")


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

    @property
    def months(self) -> Iterator[str]:
        """The months that it touches."""
        day = self.first
        while day <= self.last:
            yield f"{day:%Y-%m}"
            day = last_day(day) + timedelta(days=1)


def judge_budgets(
    card: RateCard, period: Period, lines: Iterable[Line], recent: Iterable[Line]
) -> list[dict[str, Any]]:
    """What each budget of a month has left, and what the month will have cost at its end.

    ``forecast`` goes on as the month did so far, ``recent_forecast`` as the last seven days did;
    both are None once the month is over. Days with 23 or 25 hours count as long as they are.
    """
    left = Decimal(repr(end_of(period.last, period.zone) - period.end))
    elapsed = Decimal(repr(period.end - period.begin))
    spent, lately = _sum_by_payer(lines), _sum_by_payer(recent)
    rows = sorted(card.budgets, key=lambda row: row.begin)
    newest = {(row.project, row.currency): row for row in rows if row.begin <= period.first}
    judged = []
    for (project, currency), row in newest.items():
        key = (project, currency)
        forecasts: tuple[Decimal | None, Decimal | None] = (None, None)
        if left > 0 and elapsed > 0:
            rate = lately[key] / Decimal(RECENT_SECONDS)
            forecasts = (spent[key] / elapsed * (elapsed + left), spent[key] + rate * left)
        amounts = (row.amount, spent[key], row.amount - spent[key], *forecasts)
        names = ("budget", "spent", "left", "forecast", "recent_forecast")
        rounded = (a if a is None else round_money(a, currency) for a in amounts)
        judged.append(
            {"project": project, "currency": currency, **dict(zip(names, rounded, strict=True))}
        )
    return judged


def _sum_by_payer(lines: Iterable[Line]) -> dict[tuple[str, str], Decimal]:
    """Amounts by project and currency, and of all projects as ``*``."""
    sums: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
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
    seconds: dict[tuple[str, str], dict[str, Decimal]] = {}
    rows = sorted(card.capacity, key=lambda row: row.begin)
    own = [line for line in lines if not line.corrects]
    for day, begin, end in split_days(period.begin, period.end, period.zone):
        newest = {(row.cluster, row.gpu_model): row for row in rows if row.begin <= day}
        for key, row in newest.items():
            sums = seconds.setdefault(key, dict.fromkeys(kinds, Decimal(0)))
            for kind in kinds[:3]:
                sums[kind] += getattr(row, kind) * Decimal(repr(end - begin))
            sums["allocated"] += sum(
                line.days[str(day)]
                for line in own
                if str(day) in line.days
                and line.job.cluster == row.cluster
                and match_model(line.gpu_model, row.gpu_model)
            )
    counted = []
    for (cluster, gpu_model), sums in seconds.items():
        sums["idle"] = sums["installed"] - sums["drained"] - sums["allocated"]
        hours = {f"{k}_gpu_hours": (s / _HOUR_SECONDS).quantize(_HOURS) for k, s in sums.items()}
        counted.append({"cluster": cluster, "gpu_model": gpu_model, **hours})
    return counted
