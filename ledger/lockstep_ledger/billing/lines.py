"""GPU time becomes lines of a statement: by job, month, model and price; other figures are sums."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection, or_, select

from lockstep_ledger.merge.record import priced_job, record_of_json
from lockstep_ledger.store.tables import jobs
from lockstep_outcomes.prices.calendar import split_days
from lockstep_outcomes.prices.price import HOUR_SECONDS, Price, PricedJob, Pricing


class BilledJob(msgspec.Struct, frozen=True, kw_only=True):
    """What a bill says of a job; ``number`` is the store's."""

    number: int
    cluster: str
    job_id: str
    project: str = ""
    user: str = ""
    queue: str = ""
    job_class: str = ""
    gpu_model: str = ""
    outcome: str = ""
    failure_class: str = ""
    cause: str = ""


class GpuInterval(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs that a run of a job held from one moment to another.

    Attributes:
        end: None while it runs.
        states: parts of its GPU time by goodput state, in any unit; they hold for all its days.
        gpu_seconds: of an interval with an end, where nodes came and went in it; None for
            ``num_gpus`` times its length.
    """

    job: BilledJob
    priced: PricedJob
    num_gpus: float
    begin: float
    end: float | None
    states: Mapping[str, float]
    gpu_seconds: float | None = None

    @property
    def mean_gpus(self) -> float:
        """GPUs that it holds, in the mean where it states its GPU time."""
        if self.gpu_seconds is None or self.end is None or self.end <= self.begin:
            return self.num_gpus
        return self.gpu_seconds / (self.end - self.begin)


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a statement.

    Attributes:
        price: of a GPU-hour; None where there is none, and the line costs nothing.
        days, states: parts of its GPU-seconds by day and by goodput state.
    """

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
    """The lines of a period, in the order of months and jobs; intervals without an end last on."""
    days: dict[_Key, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    states: dict[_Key, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for each in intervals:
        gpus, stop = each.mean_gpus, end if each.end is None else min(each.end, end)
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
        job, priced = BilledJob(**values), priced_job(record)
        for run in record.runs:
            if run.has_start and run.gpus:
                yield GpuInterval(
                    job=job,
                    priced=priced,
                    num_gpus=run.gpus,
                    begin=run.begin,
                    end=run.end,
                    states=run.states or record.goodput,
                    gpu_seconds=None if run.end is None else sum(run.states.values()),
                )
