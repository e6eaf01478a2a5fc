"""The price of a GPU-hour, for counters, records, bills and reports alike."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

from lockstep_outcomes.prices.rate_card import Rate, RateCard

_DAY = timedelta(days=1)
_MOST_DAYS = 400
# Of days and weeks that are asked for; arithmetic beyond them leaves the calendar.
KNOWN_YEARS = range(1970, 9999)


def parse_month(text: str) -> date:
    """The first day of a month such as 2026-10; ValueError for any other text."""
    try:
        return _known_day(f"{text}-01")
    except ValueError as error:
        raise ValueError(f"{text!r:.80} is not a month; write year and month as 2026-10") from error


def _known_day(text: str) -> date:
    day = date.fromisoformat(text)
    if day.year not in KNOWN_YEARS:
        raise ValueError(f"{day} is before {KNOWN_YEARS[0]} or after {KNOWN_YEARS[-1]}")
    return day


def read_range(
    month: str | None, first: str | None, last: str | None, today: date
) -> tuple[date, date]:
    """First and last day of a month, by default the one that runs, or a range; or ValueError."""
    if month:
        if first or last:
            raise ValueError(f"month {month} and a range are both given; give one of them")
        return parse_month(month), last_day(parse_month(month))
    try:
        begin = _known_day(first) if first else today.replace(day=1)
        end = _known_day(last) if last else last_day(begin)
    except ValueError as error:
        raise ValueError(
            f"{first or ''!r:.80} to {last or ''!r:.80} are not days; write them as 2026-10-05"
        ) from error
    if not 0 <= (end - begin).days < _MOST_DAYS:
        raise ValueError(f"from {begin} to {end} must be 1 to {_MOST_DAYS} days")
    return begin, end


def last_day(day: date) -> date:
    """The last day of the month of a day."""
    return (day.replace(day=28) + 4 * _DAY).replace(day=1) - _DAY


def day_of(seconds: float, zone: tzinfo) -> date:
    """The day on which a moment is."""
    return datetime.fromtimestamp(seconds, zone).date()


def begin_of(day: date, zone: tzinfo) -> float:
    """The moment at which a day begins, seconds since 1970."""
    return datetime.combine(day, time.min, zone).timestamp()


def end_of(day: date, zone: tzinfo) -> float:
    """The moment at which a day ends."""
    return begin_of(day + _DAY, zone)


def split_days(begin: float, end: float, zone: tzinfo) -> Iterator[tuple[date, float, float]]:
    """Day, begin and end of each part of a period; nothing where it ends before its begin."""
    while begin < end:
        day = day_of(begin, zone)
        part_end = min(end, end_of(day, zone))
        yield day, begin, part_end
        begin = part_end


HOUR_SECONDS = 3600.0


class Price(NamedTuple):
    """Money for a GPU-hour; the currency is an ISO 4217 code, or empty where nobody names one."""

    per_gpu_hour: float
    currency: str = ""


class PricedJob(NamedTuple):
    """What the price of a job depends on; ``declared`` is the price that the job states itself."""

    project: str = ""
    gpu_model: str = ""
    declared: Price | None = None


@dataclass(frozen=True)
class Pricing:
    """A rate card, the time zone of its days, and the price of jobs that declare none."""

    card: RateCard = field(default_factory=RateCard)
    zone: tzinfo = UTC
    undeclared_price: float | None = None

    def price_of(self, job: PricedJob, day: date) -> Price | None:
        """The rate of the card where it has one, else the declared price; None without either."""
        rate = self._rate(day, job.project, job.gpu_model)
        if rate is not None:
            return Price(rate.price_per_gpu_hour, rate.currency)
        declared = job.declared
        if declared is None and self.undeclared_price is not None:
            declared = Price(self.undeclared_price)
        if declared is None or declared.currency:
            return declared
        return Price(declared.per_gpu_hour, self.card.currency or "")

    def split(
        self, job: PricedJob, begin: float, end: float
    ) -> Iterator[tuple[float, Price | None]]:
        """Share and price of each part of a period, cut where a row of the card takes hold."""
        first, last = bisect_right(self._cuts, begin), bisect_right(self._cuts, max(begin, end))
        bounds = [begin, *self._cuts[first:last], max(begin, end)]
        seconds = bounds[-1] - begin
        for since, until in pairwise(bounds):
            share = (until - since) / seconds if seconds else 1.0
            yield share, self.price_of(job, day_of(since, self.zone))

    def costs(
        self, job: PricedJob, begin: float, end: float, gpu_seconds: float
    ) -> dict[str, float]:
        """Money by currency of GPU time that a job had evenly in a period."""
        costs: dict[str, float] = {}
        for share, price in self.split(job, begin, end):
            if price is not None and price.per_gpu_hour:
                amount = gpu_seconds * share / HOUR_SECONDS * price.per_gpu_hour
                costs[price.currency] = costs.get(price.currency, 0.0) + amount
        return {currency: amount for currency, amount in costs.items() if amount}

    def mean_price(self, job: PricedJob, begin: float, end: float) -> Price | None:
        """The mean price of a period; None where a part has none, or two currencies."""
        total, currencies = 0.0, set()
        for share, price in self.split(job, begin, end):
            if price is None:
                return None
            total += share * price.per_gpu_hour
            currencies.add(price.currency)
        return Price(total, currencies.pop()) if len(currencies) == 1 else None

    @cached_property
    def digest(self) -> str:
        """Digest of the rate card."""
        return self.card.digest

    @cached_property
    def _rate(self) -> Callable[[date, str, str], Rate | None]:
        return lru_cache(4096)(self.card.rate)

    @cached_property
    def _cuts(self) -> list[float]:
        """Moments at which a row of the card takes hold."""
        return sorted({begin_of(rate.begin, self.zone) for rate in self.card.rates})
