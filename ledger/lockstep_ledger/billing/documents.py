"""What readers get: costs of a period, and the statement of a month, over one store."""

from collections.abc import Iterable, Iterator
from datetime import date, tzinfo
from typing import Any

from sqlalchemy import Connection, or_, select

from lockstep_ledger.billing import months
from lockstep_ledger.merge.record import record_of_json
from lockstep_ledger.money.accrual import BilledJob, GpuInterval, Line, accrue
from lockstep_ledger.money.calendar import day_of, last_day, parse_month
from lockstep_ledger.money.costs import CostQuestion, Costs, group
from lockstep_ledger.money.plans import RECENT_SECONDS, Period, count_capacity, judge_budgets
from lockstep_ledger.money.rate_card import RateCard
from lockstep_ledger.store.queries import Limits
from lockstep_ledger.store.tables import jobs

_CHECKED_MONTHS = 2
"""Closed months that a statement holds against the records of jobs, the newest."""


class Bills:
    """Bills of one store, read at one moment.

    Args:
        zone: of days and months.
        now: up to which running jobs cost.
        limits: of the reader; who sees some jobs only sees no capacity, and the budgets of his
            projects where he sees all of their jobs.

    Raises:
        ValueError: months were closed in another zone.
    """

    def __init__(
        self, connection: Connection, card: RateCard, zone: tzinfo, now: float, *,
        limits: Limits | None = None,
    ) -> None:  # fmt: skip
        self.connection, self.now, self.today = connection, now, day_of(now, zone)
        self._card, self._zone, self._limits = card, zone, limits or {}
        self._closed = months.list_closed(connection, zone)
        self._accrued: dict[tuple[float, float], list[Line]] = {}

    def costs(self, question: CostQuestion) -> Costs:
        """What a question asks for."""
        return group(self.lines(question.first, question.last), question)

    def lines(self, first: date, last: date) -> list[Line]:
        """Lines of all months that the days touch: as billed, or as they would be now."""
        period = self._period(first.replace(day=1), last_day(last))
        names = list(period.months)
        lines = months.read_lines(self.connection, names)
        if not set(names) <= self._closed.keys():
            accrued = self._accrue(period.begin, period.end)
            lines += [line for line in accrued if line.month not in self._closed]
        return self._visible(lines)

    def statement(self, month: str) -> dict[str, Any]:
        """Lines, totals, budgets and capacity of a month, and what closed months lack."""
        first = parse_month(month)
        period = self._period(first, last_day(first))
        lines = self.lines(period.first, period.last)
        recent = self._visible(self._accrue(self.now - RECENT_SECONDS, self.now))
        everything = CostQuestion(
            first=period.first, last=period.last, by=(), sort="amount", chosen={}
        )
        budgets = [
            budget
            for budget in judge_budgets(self._card, period, lines, recent)
            if not self._limits or budget["project"] in self._limits.get("project", ())
        ]
        checked = {*list(self._closed)[-_CHECKED_MONTHS:], month} & self._closed.keys()
        return {
            "month": month,
            "timezone": str(self._zone),
            "closed": self._closed.get(month),
            "lines": lines,
            "totals": group(lines, everything).totals,
            "budgets": [] if "cluster" in self._limits else budgets,
            "capacity": [] if self._limits else count_capacity(self._card, period, lines),
            "checked": sorted(checked),
            "differences": [line for name in sorted(checked) for line in self.differences(name)],
        }

    def differences(self, month: str) -> list[Line]:
        """What a closed month would be now and is not; nothing where that is booked."""
        if month not in self._closed:
            raise ValueError(f"month {month} is not closed; it needs no correction")
        computed = self._computed(month)
        return self._visible(
            months.find_differences(self.connection, self._closed[month], computed, self._card)
        )

    def close(self, month: str, author: str) -> list[Line]:
        """Closes a month; returns its lines.

        Raises:
            ValueError: the month is not over, not the next one, or one before it differs.
        """
        last = last_day(parse_month(month))
        if self.today <= last:
            raise ValueError(f"month {month} is not over in {self._zone}; close it after its end")
        for name in self._closed:
            if lacking := self.differences(name):
                raise ValueError(
                    f"month {name} differs from what was closed in {len(lacking)} lines; look at"
                    f" them and book them with lockstep ledger correct {name} --reason TEXT"
                )
        lines = self._computed(month)
        closed = months.ClosedMonth(
            month=month,
            zone=str(self._zone),
            rate_card=self._card.digest,
            closed=self.now,
            author=author,
        )
        months.close_month(self.connection, closed, lines)
        return lines

    def _computed(self, month: str) -> list[Line]:
        period = self._period(parse_month(month), last_day(parse_month(month)))
        return self._accrue(period.begin, period.end)

    def _accrue(self, begin: float, end: float) -> list[Line]:
        if (begin, end) not in self._accrued:
            intervals = read_intervals(self.connection, begin, end)
            self._accrued[begin, end] = accrue(intervals, self._card, self._zone, begin, end)
        return self._accrued[begin, end]

    def _period(self, first: date, last: date) -> Period:
        return Period(first=first, last=last, zone=self._zone, now=self.now)

    def _visible(self, lines: Iterable[Line]) -> list[Line]:
        limits = self._limits.items()
        return [line for line in lines if all(line.value(n) in values for n, values in limits)]


def read_intervals(connection: Connection, begin: float, end: float) -> Iterator[GpuInterval]:
    """GPU time of the runs of all jobs that ran in a period, whole ones.

    Of a run that goes on it is the GPUs that it holds; a run without GPUs has none.
    """
    query = select(jobs.c.state).where(
        jobs.c.started < end,
        or_(jobs.c.ended.is_(None), jobs.c.ended > begin, jobs.c.status != "finished"),
    )
    for state in connection.execute(query.order_by(jobs.c.number)).scalars():
        record = record_of_json(state)
        names = BilledJob.__struct_fields__
        values: dict[str, Any] = {name: getattr(record, name) or "" for name in names}
        job = BilledJob(**values)
        for run in record.runs:
            if run.has_start and run.gpus:
                yield GpuInterval(
                    job=job,
                    gpu_model=record.gpu_model,
                    num_gpus=run.gpus,
                    begin=run.begin,
                    end=run.end,
                    states=run.states or record.goodput,
                    gpu_seconds=None if run.end is None else sum(run.states.values()),
                    price_per_gpu_hour=record.price_per_gpu_hour,
                    currency=record.currency,
                )
