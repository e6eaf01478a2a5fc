"""Days are as long as the clock of a site makes them, and prices change at their begin."""

from datetime import date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from lockstep_outcomes.prices.price import (
    Price,
    PricedJob,
    Pricing,
    begin_of,
    read_range,
    split_days,
)
from lockstep_outcomes.prices.rate_card import Rate, RateCard, read_rate_card

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(("day", "hours"), [((3, 29), 23), ((10, 25), 25), ((10, 26), 24)])
def test_a_day_is_as_long_as_the_sites_clock_makes_it(day: tuple[int, int], hours: int) -> None:
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


RATE = "{from: 2026-01-01, price_per_gpu_hour: 2.10, currency: EUR}"


def read(folder: Path, text: str) -> RateCard:
    path = folder / "rates.yaml"
    path.write_text(text, encoding="utf-8")
    return read_rate_card(path)


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdef", "bcdefg", strict=True)
)


def rates(*changes: tuple[str, str]) -> str:
    """A rate, and one more for each change of its text."""
    return "rates:\n" + "".join(f"  - {RATE.replace(*change)}\n" for change in (("", ""), *changes))


TWICE = [(" currency", f" gpu_model: '{model}', currency") for model in ("*H200*", "*h200*")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (rates(("EUR", "eur")), ":3: rates[1].currency 'eur': Expected `str` matching regex"),
        (rates(("01-01", "13-01")), ":3: rates[1].from '2026-13-01'"),
        (rates(("2.10", "-1")), ":3: rates[1].price_per_gpu_hour '-1': Expected `float` >= 0.0"),
        (rates(("2.10", "nan")), ":3: rates[1].price_per_gpu_hour 'nan': Expected `float`"),
        (rates(("2.10", "1e99")), "price_per_gpu_hour '1e99': Expected `float` <="),
        (rates(("2.10", "two")), "rates[1].price_per_gpu_hour 'two'"),
        (rates(("price_per", "per")), "unknown field `per_gpu_hour`"),
        (rates((" currency: EUR", "")), "missing required field `currency`"),
        (rates(("2.10", "3")), "rates[1] has date, model and project of another"),
        (rates(*TWICE), "rates[2] has date, model"),
        ("currency: EUR\ncurrency: USD\n", "line 2: a key twice"),
        ("rate: []", "unknown field `rate`"),
        ("rates: [", "is not YAML"),
        ("- a", "rates.yaml:1:"),
        ("capacity: [{from: 2026-01-01, cluster: a, installed: b}]", "capacity[0].installed 'b'"),
        (BOMB, "more than 50,000 values"),
        ("rates: " + "[" * 1200, "is not YAML"),
    ],
)
def test_a_wrong_card_is_refused_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"rates\.yaml") as error:
        read(tmp_path, text)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_an_empty_card_and_none_have_no_rates(tmp_path: Path) -> None:
    assert read(tmp_path, "# nothing yet\n") == read_rate_card(None) == RateCard()
    with pytest.raises(ValueError, match="cannot be read"):
        read_rate_card(tmp_path / "absent.yaml")


def test_the_digest_is_of_what_the_card_says_and_not_of_its_layout(tmp_path: Path) -> None:
    first = read(tmp_path, f"rates:\n  - {RATE}\n")
    assert read(tmp_path, f"# a comment\nrates: [{RATE}]").digest == first.digest
    assert read(tmp_path, f"rates: [{RATE.replace('2.10', '2.11')}]").digest != first.digest


@pytest.mark.parametrize(
    ("day", "project", "model", "price"),
    [
        ((2025, 12, 31), "speech", "NVIDIA H200", None),
        ((2026, 1, 1), "speech", "NVIDIA H200", "2"),
        ((2026, 1, 1), "speech", "NVIDIA L4", "1"),
        ((2026, 2, 1), "speech", "nvidia h200", "3"),
        # The project comes before the model, and the model before the date.
        ((2026, 2, 1), "vision", "NVIDIA H200", "4"),
        ((2026, 3, 1), "speech", "NVIDIA H200", "3"),
        ((2026, 3, 1), "speech", "NVIDIA L4", "5"),
        ((2026, 2, 1), "speech", "NVIDIA H200 NVL", "6"),
        ((2026, 2, 1), "speech", "", "1"),
    ],
)
def test_the_most_specific_rate_whose_date_has_come_holds(
    tmp_path: Path, day: tuple[int, int, int], project: str, model: str, price: str | None
) -> None:
    rows = [
        ("2026-01-01", "*", "*", 1), ("2026-01-01", "*h200*", "*", 2),
        ("2026-02-01", "*H200*", "*", 3), ("2026-01-15", "*", "vision", 4),
        ("2026-03-01", "*", "*", 5), ("2026-02-01", "*H200 NVL", "*", 6),
    ]  # fmt: skip
    lines = [
        f'  - {{from: {begin}, gpu_model: "{pattern}", project: "{name}",'
        f" price_per_gpu_hour: {amount}, currency: EUR}}\n"
        for begin, pattern, name, amount in rows
    ]
    rate = read(tmp_path, "rates:\n" + "".join(lines)).rate(date(*day), project, model)
    assert (None if rate is None else f"{rate.price_per_gpu_hour:g}") == price
