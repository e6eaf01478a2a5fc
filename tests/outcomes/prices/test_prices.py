"""Days are as long as the clock of a site makes them, and prices change at their begin."""

from datetime import date, datetime
from zoneinfo import ZoneInfo

import pytest

from lockstep_outcomes.prices.calendar import begin_of, read_range, split_days
from lockstep_outcomes.prices.price import Price, PricedJob, Pricing
from lockstep_outcomes.prices.rate_card import Rate, RateCard

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(("day", "hours"), [((3, 29), 23), ((10, 25), 25), ((10, 26), 24)])
def test_a_day_is_as_long_as_the_clock_of_the_site_makes_it(
    day: tuple[int, int], hours: int
) -> None:
    first = date(2026, *day)
    [(split, begin, end)] = split_days(
        begin_of(first, BERLIN), begin_of(first, BERLIN) + hours * 3600, BERLIN
    )
    assert (split, end - begin) == (first, hours * 3600.0)


def test_a_zone_whose_midnight_is_left_out_begins_its_day_at_one() -> None:
    beirut = ZoneInfo("Asia/Beirut")  # on 2022-03-27 clocks went from 00:00 to 01:00
    begin = begin_of(date(2022, 3, 27), beirut)
    assert datetime.fromtimestamp(begin, beirut).hour == 1
    days = list(split_days(begin - 1, begin + 23 * 3600 + 1, beirut))
    assert [end - start for _, start, end in days] == [1.0, 23 * 3600.0, 1.0]


@pytest.mark.parametrize(
    ("month", "first", "last", "expected"),
    [
        ("2026-02", None, None, ((2026, 2, 1), (2026, 2, 28))),
        (None, None, None, ((2026, 12, 1), (2026, 12, 31))),
        (None, "2026-10-05", "2026-11-02", ((2026, 10, 5), (2026, 11, 2))),
        (None, "2026-10-05", None, ((2026, 10, 5), (2026, 10, 31))),
    ],
)
def test_a_range_is_a_month_or_days(
    month: str | None,
    first: str | None,
    last: str | None,
    expected: tuple[tuple[int, int, int], tuple[int, int, int]],
) -> None:
    found = read_range(month, first, last, date(2026, 12, 7))
    assert found == tuple(date(*day) for day in expected)


@pytest.mark.parametrize(
    ("month", "first", "last", "words"),
    [
        ("2026-13", None, None, "'2026-13' is not a month"),
        (None, "5.10.2026", None, "'5.10.2026' to '' are not days"),
        (None, "2026-10-05", "2026-10-04", "must be 1 to 400 days"),
        (None, "2020-10-05", "2026-10-04", "must be 1 to 400 days"),
        ("2026-10", "2026-10-05", None, "both given"),
    ],
)
def test_what_is_not_a_range_is_refused(
    month: str | None, first: str | None, last: str | None, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        read_range(month, first, last, date(2026, 12, 7))


def test_a_period_costs_each_part_at_the_rate_of_its_day() -> None:
    rates = [(date(2026, 10, 2), 1.0, "EUR"), (date(2026, 10, 3), 3.0, "EUR")]
    card = RateCard(
        rates=tuple(Rate(begin=d, price_per_gpu_hour=p, currency=c) for d, p, c in rates)
    )
    pricing, job = Pricing(card, BERLIN), PricedJob(declared=Price(5.0, "EUR"))
    begin, end = begin_of(date(2026, 10, 1), BERLIN), begin_of(date(2026, 10, 4), BERLIN)
    # A day each at 5, 1 and 3.
    assert pricing.costs(job, begin, end, 3 * 3600.0) == pytest.approx({"EUR": 9.0})
    assert pricing.mean_price(job, begin, end) == pytest.approx(Price(3.0, "EUR"))
    undeclared = PricedJob()
    assert pricing.costs(undeclared, begin, end, 3 * 3600.0) == pytest.approx({"EUR": 4.0})
    assert pricing.mean_price(undeclared, begin, end) is None
    # Time without length has the price of its moment.
    assert pricing.costs(job, end, end, 3600.0) == {"EUR": 3.0}
    assert pricing.mean_price(PricedJob(declared=Price(2.0)), begin, end) is None
