"""Bills of GPU time by line: costs of a period by any field, and the statement of a month."""

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, tzinfo
from typing import Any

import msgspec
from sqlalchemy import Connection, or_, select

from lockstep_ledger.merge.allocation import pieces
from lockstep_ledger.merge.record import priced_job, record_of_json
from lockstep_ledger.store.queries import Limits
from lockstep_ledger.store.tables import jobs
from lockstep_outcomes.prices.price import (
    HOUR_SECONDS,
    Price,
    PricedJob,
    Pricing,
    begin_of,
    day_of,
    end_of,
    last_day,
    parse_month,
    read_range,
    split_days,
)
from lockstep_outcomes.prices.rate_card import RateCard, match_model


class BilledJob(msgspec.Struct, frozen=True, kw_only=True):
    """What a bill says of a job; ``number`` is the store's."""

    number: int
    cluster: str
    job_id: str
    project: str = ""
    user: str = ""
    voucher: str = ""
    queue: str = ""
    job_class: str = ""
    gpu_model: str = ""
    outcome: str = ""
    failure_class: str = ""
    cause: str = ""


class GpuInterval(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs that a run held for a time; ``states`` are parts of it in any unit, for all its days."""

    job: BilledJob
    priced: PricedJob
    num_gpus: float
    begin: float
    end: float
    states: Mapping[str, float]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a statement, its GPU-seconds by day and by state; costs nothing without a price."""

    month: str
    job: BilledJob
    price: float | None
    currency: str
    days: dict[str, float]
    states: dict[str, float]

    @property
    def gpu_seconds(self) -> float:
        """GPU time of all its days."""
        return sum(self.days.values())

    @property
    def amount(self) -> float:
        """Money for its GPU time."""
        return self.gpu_seconds / HOUR_SECONDS * (self.price or 0.0)

    def value(self, name: str) -> str:
        """The text of a field of the line or of its job."""
        return str(getattr(self if name in self.__struct_fields__ else self.job, name))


_Key = tuple[str, BilledJob, Price | None]


def accrue(
    intervals: Iterable[GpuInterval], pricing: Pricing, begin: float, end: float
) -> list[Line]:
    """The lines of a period, in the order of months and jobs."""
    days: dict[_Key, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    states: dict[_Key, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for each in intervals:
        gpus, stop = each.num_gpus, min(each.end, end)
        weights = {state: part for state, part in each.states.items() if part > 0}
        weights = weights or {"unknown": 1.0}
        total = sum(weights.values())
        parts = split_days(max(each.begin, begin), stop, pricing.zone) if gpus else ()
        for day, since, until in parts:
            key = (f"{day:%Y-%m}", each.job, pricing.price_of(each.priced, day))
            seconds = (until - since) * gpus
            days[key][str(day)] += seconds
            for state, weight in weights.items():
                states[key][state] += seconds * weight / total
    lines = [_line(key, dict(parts), dict(states[key])) for key, parts in days.items()]
    return sorted(lines, key=lambda line: (line.month, line.job.number))


def _line(key: _Key, days: dict[str, float], states: dict[str, float]) -> Line:
    month, job, price = key
    per_gpu_hour, currency = price or (None, "")
    return Line(
        month=month, job=job, price=per_gpu_hour, currency=currency, days=days, states=states
    )


def read_intervals(
    connection: Connection, begin: float, end: float, now: float
) -> Iterator[GpuInterval]:
    """GPU time of the runs of all jobs that ran in a period, as it is known at a moment."""
    query = select(jobs.c.state).where(
        jobs.c.started < end,
        or_(jobs.c.ended.is_(None), jobs.c.ended > begin, jobs.c.status != "finished"),
    )
    for state in connection.execute(query.order_by(jobs.c.number)).scalars():
        record = record_of_json(state)
        names = set(BilledJob.__struct_fields__) - {"gpu_model"}
        values: dict[str, Any] = {name: getattr(record, name) or "" for name in names}
        for run in record.runs:
            for model, since, until, gpus in pieces(run.allocation, run.count_until(now)):
                yield GpuInterval(
                    job=BilledJob(gpu_model=model, **values),
                    priced=priced_job(record, model),
                    num_gpus=gpus,
                    begin=since,
                    end=until,
                    states=run.states,
                )


WASTED_STATES = frozenset((
    "straggler_wait", "restore", "rework", "hang", "recovery", "idle", "held_after_end",
))  # fmt: skip
"""States in which GPUs that somebody pays for bring no training forward, whoever is to blame."""
CHOSEN = ("cluster", "project", "user", "queue", "job_class")
"""Fields of lines by which they are chosen, each by one value."""
DIMENSIONS = (*CHOSEN, "gpu_model", "outcome", "failure_class", "cause", "job_id", "month", "day",
              "state", "voucher")  # fmt: skip
"""What costs can be grouped by; ``state`` is the cause of waste."""
MEASURES = ("gpu_hours", "wasted_gpu_hours", "amount", "wasted_amount")
QUESTION = ("month", "from", "to", "by", "sort", *CHOSEN)
"""What a question about costs may name."""
LINE_COLUMNS = ("month", "cluster", "job_id", "project", "user", "gpu_model", "outcome",
                "gpu_hours", "price", "currency", "amount", "voucher")  # fmt: skip
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


class CostQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Days (the last counts too), dimensions, order, and the only values of some fields."""

    first: date
    last: date
    by: tuple[str, ...]
    sort: str
    chosen: dict[str, str]


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of dimensions, currency (empty without a price) and measures; totals by currency."""

    rows: list[dict[str, Any]]
    totals: list[dict[str, Any]]


def read_question(given: Mapping[str, str], today: date) -> CostQuestion:
    """The question of texts, by default by project in the month that runs; or ValueError."""
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
    """The costs that a question asks for, of the lines of all months that its days touch."""
    by, sort = question.by, question.sort
    cells: dict[tuple[str, ...], list[float]] = {}
    totals: dict[str, list[float]] = {}
    for line in lines:
        if any(line.value(name) != value for name, value in question.chosen.items()):
            continue
        for key, share, wasted in _parts(line, question):
            hours, amount = line.gpu_seconds / HOUR_SECONDS * share, line.amount * share
            measures = (hours, hours * wasted, amount, amount * wasted)
            for sums in (
                cells.setdefault((line.currency, *key), [0.0] * len(MEASURES)),
                totals.setdefault(line.currency, [0.0] * len(MEASURES)),
            ):
                sums[:] = [value + more for value, more in zip(sums, measures, strict=True)]
    names = ("currency", *by, *MEASURES)
    rows: list[dict[str, Any]] = [
        dict(zip(names, (*key, *sums), strict=True)) for key, sums in sorted(cells.items())
    ]
    rows.sort(key=lambda row: row[sort], reverse=sort in MEASURES)
    return Costs(
        rows=sorted(rows, key=lambda row: str(row["currency"])),
        totals=[
            {"currency": currency, **dict(zip(MEASURES, sums, strict=True))}
            for currency, sums in sorted(totals.items())
        ],
    )


def _parts(line: Line, question: CostQuestion) -> Iterator[tuple[tuple[str, ...], float, float]]:
    """Key of each part of a line, its share of the line, and which share of it is waste."""
    first, last = str(question.first), str(question.last)
    days = {day: share for day, share in _shares(line.days).items() if first <= day <= last}
    states = {
        state: (share, float(state in WASTED_STATES))
        for state, share in _shares(line.states).items()
    }
    if "day" not in question.by:
        days = {"": sum(days.values())}
    if "state" not in question.by:
        states = {"": (1.0, sum(share * is_wasted for share, is_wasted in states.values()))}
    for day, day_share in days.items():
        for state, (state_share, wasted) in states.items() if day_share else ():
            own = {"day": day, "state": state}
            key = tuple(own[name] if name in own else line.value(name) for name in question.by)
            yield key, day_share * state_share, wasted


def _shares(weights: Mapping[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def cost_rows(
    by: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> tuple[tuple[str, ...], list[list[object]]]:
    """Columns and rows of costs that are grouped by some dimensions; rows may be totals."""
    columns = (*by, *MEASURES[:2], "currency", *MEASURES[2:])
    return columns, [[row.get(name, "total") for name in columns] for row in rows]


def line_row(line: Line) -> list[object]:
    """The values of a line in ``LINE_COLUMNS``."""
    special: dict[str, object] = {
        "gpu_hours": line.gpu_seconds / HOUR_SECONDS, "price": line.price, "amount": line.amount
    }  # fmt: skip
    return [special[name] if name in special else line.value(name) for name in LINE_COLUMNS]


def to_csv(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """CSV with a header; a text that a spreadsheet would compute has an apostrophe before it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return text.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, float):
        return round(value, 6)
    is_formula = isinstance(value, str) and value.startswith(_FORMULAS)
    return f"'{value}" if is_formula else value


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
    left, elapsed = (end_of(period.last, period.zone) - period.end, period.end - period.begin)
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
    """A month: lines in ``LINE_COLUMNS``, totals, plans, and the digest of the card of prices."""

    month: str
    timezone: str
    rate_card: str
    lines: list[dict[str, Any]]
    totals: list[dict[str, Any]]
    budgets: list[dict[str, Any]]
    capacity: list[dict[str, Any]]


class Bills:
    """Bills of one store, in which running jobs cost up to ``now``.

    A reader of some jobs sees no capacity, and of budgets those of projects all of whose jobs he
    sees.
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
        """Lines, totals, budgets and capacity of a month; ValueError where the text is none."""
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
        lines, limits = accrue(intervals, self._pricing, begin, end), self._limits.items()
        return [line for line in lines if all(line.value(n) in values for n, values in limits)]

    def _period(self, first: date, last: date) -> Period:
        return Period(first=first, last=last, zone=self._pricing.zone, now=self._now)
