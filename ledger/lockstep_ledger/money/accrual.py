"""GPU time becomes lines of a statement: by job, month, model and price, rounded once each.

An amount is GPU-seconds times the price of an hour over 3600, rounded half up to the smallest
coin of the currency where the line is written, and nowhere before; every other figure is a sum of
lines or a share of one.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import tzinfo
from decimal import ROUND_HALF_UP, Decimal
from functools import cache

import msgspec

from lockstep_ledger.money.calendar import split_days
from lockstep_ledger.money.rate_card import RateCard

_HOUR_SECONDS = Decimal(3600)
_MICROSECONDS, _MICROSECOND = 1_000_000, Decimal("0.000001")
# ISO 4217: currencies whose smallest coin is not a hundredth.
_WHOLE = frozenset((
    "BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "UYI", "VND",
    "VUV", "XAF", "XOF", "XPF",
))  # fmt: skip
_THOUSANDTHS = frozenset(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"))


class BilledJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a bill says of a job; ``number`` is the store's."""

    number: int
    cluster: str
    job_id: str
    project: str = ""
    user: str = ""
    queue: str = ""
    job_class: str = ""
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
        price_per_gpu_hour: as the job declares it, in its ``currency``, where the card has no rate.
    """

    job: BilledJob
    gpu_model: str
    num_gpus: float
    begin: float
    end: float | None
    states: Mapping[str, float]
    gpu_seconds: float | None = None
    price_per_gpu_hour: float | None = None
    currency: str = ""


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of a statement.

    Attributes:
        price: of a GPU hour; None where there is none, and the line costs nothing.
        amount: rounded.
        days, states: parts of it by day and by goodput state, as weights.
        corrects: month that was closed without it; a correction has who booked it, when and why,
            and the ``event`` that changed the month.
    """

    month: str
    job: BilledJob
    gpu_model: str
    currency: str
    price: Decimal | None
    gpu_seconds: Decimal
    amount: Decimal
    days: dict[str, Decimal]
    states: dict[str, Decimal]
    corrects: str = ""
    author: str = ""
    booked: float | None = None
    reason: str = ""
    event: str = ""

    def value(self, name: str) -> str:
        """The text of a field of the line or of its job."""
        return str(getattr(self if name in self.__struct_fields__ else self.job, name))


def round_money(amount: Decimal, currency: str) -> Decimal:
    """The amount to the smallest coin of its currency, half of one away from zero."""
    digits = 0 if currency in _WHOLE else 3 if currency in _THOUSANDTHS else 2
    return amount.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)


_Key = tuple[str, BilledJob, str, Decimal | None, str]
"""Month, job, model, price and currency of a line."""


def accrue(
    intervals: Iterable[GpuInterval], card: RateCard, zone: tzinfo, begin: float, end: float
) -> list[Line]:
    """The lines of a period, in the order of months and jobs; intervals without an end last on."""
    rate_of = cache(card.rate)
    days: dict[_Key, dict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    states: dict[_Key, dict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    for each in intervals:
        gpus, stop = _gpus(each), end if each.end is None else min(each.end, end)
        weights = {s: Decimal(repr(part)) for s, part in each.states.items() if part > 0}
        weights = weights or {"unknown": Decimal(1)}
        total = sum(weights.values())
        price, currency = None, ""
        if each.price_per_gpu_hour is not None:
            price = Decimal(repr(each.price_per_gpu_hour))
            currency = each.currency or card.currency or ""
        for day, since, until in split_days(max(each.begin, begin), stop, zone) if gpus else ():
            rate = rate_of(day, each.job.project, each.gpu_model)
            paid = (rate.price_per_gpu_hour, rate.currency) if rate else (price, currency)
            key = (f"{day:%Y-%m}", each.job, each.gpu_model, *paid)
            seconds = _seconds(since, until) * gpus
            days[key][str(day)] += seconds
            for state, weight in weights.items():
                states[key][state] += seconds * weight / total
    lines = [_line(key, dict(parts), dict(states[key])) for key, parts in days.items()]
    return sorted(lines, key=lambda line: (line.month, line.job.number))


def _gpus(interval: GpuInterval) -> Decimal:
    """GPUs that an interval holds, in the mean where it states its GPU time."""
    if interval.gpu_seconds is None or interval.end is None or interval.end <= interval.begin:
        return Decimal(repr(interval.num_gpus))
    return Decimal(repr(interval.gpu_seconds)) / _seconds(interval.begin, interval.end)


def _seconds(begin: float, end: float) -> Decimal:
    """A duration in whole microseconds: a sum of floats would depend on its order."""
    return Decimal(round(end * _MICROSECONDS) - round(begin * _MICROSECONDS)) / _MICROSECONDS


def _line(key: _Key, days: dict[str, Decimal], states: dict[str, Decimal]) -> Line:
    month, job, gpu_model, price, currency = key
    seconds = sum(days.values(), Decimal(0)).quantize(_MICROSECOND)
    return Line(
        month=month,
        job=job,
        gpu_model=gpu_model,
        currency=currency,
        price=price,
        gpu_seconds=seconds,
        amount=round_money(seconds * (price or 0) / _HOUR_SECONDS, currency),
        days=days,
        states=states,
    )
