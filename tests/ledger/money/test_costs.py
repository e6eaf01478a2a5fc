"""Days of 23 and 25 hours, shares that add up to the last coin, budgets and capacity by hand."""

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep_ledger.money.accrual import BilledJob, GpuInterval, Line, accrue, round_money
from lockstep_ledger.money.calendar import begin_of, last_day, parse_month, read_range, split_days
from lockstep_ledger.money.costs import CostQuestion, Costs, apportion, group
from lockstep_ledger.money.plans import Period, count_capacity, judge_budgets
from lockstep_ledger.money.rate_card import Budget, Capacity, Rate, RateCard

BERLIN = ZoneInfo("Europe/Berlin")
CARD = RateCard(
    rates=(
        Rate(begin=date(2026, 1, 1), price_per_gpu_hour=Decimal(2), currency="EUR"),
        Rate(begin=date(2026, 1, 1), price_per_gpu_hour=Decimal(3), currency="JPY", project="kyo"),
    )
)


def at(day: str) -> float:
    return datetime.fromisoformat(f"2026-{day}").replace(tzinfo=BERLIN).timestamp()


def interval(
    begin: str, end: str | None, states: Mapping[str, float] | None = None, **facts: Any
) -> GpuInterval:
    gpus = facts.pop("num_gpus", 1)
    described = {"number": 1, "cluster": "east", "job_id": "j", **facts}
    return GpuInterval(
        job=BilledJob(**described),
        gpu_model="H200",
        num_gpus=gpus,
        begin=at(begin),
        end=None if end is None else at(end),
        states=states or {},
    )


def lines_of(*intervals: GpuInterval, now: str = "12-31 00:00") -> list[Line]:
    return accrue(intervals, CARD, BERLIN, at("01-01 00:00"), at(now))


@pytest.mark.parametrize(("day", "hours"), [((3, 29), 23), ((10, 25), 25), ((10, 26), 24)])
def test_a_day_is_as_long_as_the_clock_of_the_site_makes_it(
    day: tuple[int, int], hours: int
) -> None:
    first = date(2026, *day)
    [(split, begin, end)] = split_days(
        begin_of(first, BERLIN), begin_of(first, BERLIN) + hours * 3600, BERLIN
    )
    assert (split, end - begin) == (first, hours * 3600.0)
    [line] = lines_of(interval(f"{first:%m-%d} 00:00", f"{first:%m-%d} 23:59:59"))
    assert line.gpu_seconds == hours * 3600 - 1


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


def test_money_is_rounded_half_up_to_the_coin_of_its_currency() -> None:
    assert [
        str(round_money(Decimal(amount), currency))
        for amount, currency in [
            ("0.005", "EUR"), ("-0.005", "EUR"), ("0.0049999", "EUR"), ("2.5", "JPY"),
            ("1.0005", "KWD"), ("2.675", ""),
        ]
    ] == ["0.01", "-0.01", "0.00", "3", "1.001", "2.68"]  # fmt: skip


def test_lines_do_not_depend_on_the_order_or_the_cuts_of_intervals() -> None:
    one_piece = lines_of(interval("10-01 00:00", "10-09 07:00:01", num_gpus=8))
    pieces = [
        interval("10-04 03:33:33", "10-09 07:00:01", num_gpus=8),
        interval("10-01 00:00", "10-04 03:33:33", num_gpus=8),
    ]
    assert lines_of(*pieces)[0].amount == one_piece[0].amount
    assert lines_of(*reversed(pieces)) == lines_of(*pieces)
    assert lines_of(interval("10-01 00:00", "10-02 00:00", num_gpus=0)) == []
    assert lines_of(interval("10-02 00:00", "10-01 00:00")) == []


def test_gpu_time_that_nodes_had_in_parts_of_an_interval_is_billed_to_the_microsecond() -> None:
    allocation = interval("10-31 12:00", "11-01 12:00", num_gpus=16)
    # 24 hours, of which 12 are October's.
    stated = msgspec.structs.replace(allocation, gpu_seconds=100_000.123456)
    lines = lines_of(stated)
    assert sum(line.gpu_seconds for line in lines) == Decimal("100000.123456")
    assert lines[0].gpu_seconds == Decimal("50000.061728")
    # A half of a cent stays a half of a cent: 9 s of 2 EUR an hour.
    cent = msgspec.structs.replace(allocation, end=at("10-31 13:30"), gpu_seconds=9.0)
    assert [line.amount for line in lines_of(cent)] == [Decimal("0.01")]


@given(parts=st.lists(st.decimals("-100", "100", places=6), min_size=1, max_size=30))
def test_parts_add_up_to_their_total_and_none_is_a_coin_off(parts: list[Decimal]) -> None:
    total = round_money(sum(parts, Decimal(0)), "EUR")
    coins = apportion(total, parts)
    assert sum(coins) == total
    assert all(abs(coin - part) <= Decimal("0.01") for coin, part in zip(coins, parts, strict=True))


def grouped(
    lines: list[Line], by: tuple[str, ...], first: date, last: date, sort: str = "amount"
) -> Costs:
    return group(lines, CostQuestion(first=first, last=last, by=by, sort=sort, chosen={}))


STATES = {"productive": 5.0, "hang": 1.0, "straggler_wait": 1.0}
OCTOBER = (date(2026, 10, 1), date(2026, 10, 31))


@pytest.mark.parametrize(
    "by", [(), ("day",), ("state",), ("day", "state"), ("project", "user"), ("outcome", "cause")]
)
def test_every_way_to_group_adds_up_to_the_lines(by: tuple[str, ...]) -> None:
    lines = lines_of(
        interval("10-02 11:11:11", "10-05 05:05:05", STATES, number=1, project="a", user="ada"),
        interval(
            "10-03 01:01:01", "10-03 05:05:07", STATES, number=2, project="b", outcome="failed"
        ),
        interval("10-01 00:00:01", "10-01 00:00:20", None, number=3, project="kyo", num_gpus=64),
        interval("10-20 00:00", None, {"hang": 1.0}, number=4, project="a"),
        now="10-22 13:00",
    )
    costs = grouped(lines, by, *OCTOBER)
    # 65:53:54 h x 2, 4:04:06 h x 2, 61 h x 2 EUR; 64 x 19 s x 3 JPY = 1.01.
    assert [line.amount for line in lines] == [
        Decimal("131.80"), Decimal("8.14"), Decimal(1), Decimal("122.00"),
    ]  # fmt: skip
    totals = {row["currency"]: row for row in costs.totals}
    assert {name: row["amount"] for name, row in totals.items()} == {
        "EUR": Decimal("261.94"), "JPY": Decimal(1),
    }  # fmt: skip
    # Two sevenths of the first two jobs, and all of the last.
    assert totals["EUR"]["wasted_amount"] == round_money(
        Decimal("139.94") * 2 / 7 + Decimal("122.00"), "EUR"
    )
    for currency, total in totals.items():
        rows = [row for row in costs.rows if row["currency"] == currency]
        for measure in ("gpu_hours", "wasted_gpu_hours", "amount", "wasted_amount"):
            assert sum(row[measure] for row in rows) == total[measure]
    amounts = [row["amount"] for row in costs.rows if row["currency"] == "EUR"]
    assert amounts == sorted(amounts, reverse=True)


def test_a_range_of_days_costs_its_part_of_the_month() -> None:
    lines = lines_of(interval("10-02 12:00", "10-05 12:00"))  # 72 h x 2 = 144
    costs = grouped(lines, ("day",), date(2026, 10, 3), date(2026, 10, 4), "day")
    assert [(row["day"], str(row["amount"])) for row in costs.rows] == [
        ("2026-10-03", "48.00"), ("2026-10-04", "48.00"),
    ]  # fmt: skip


def test_time_without_a_price_is_there_and_costs_nothing() -> None:
    lines = accrue(
        [interval("10-01 00:00", "10-01 10:00")],
        RateCard(),
        BERLIN,
        at("10-01 00:00"),
        at("11-01 00:00"),
    )
    [row] = grouped(lines, ("project",), *OCTOBER).rows
    assert (row["currency"], row["gpu_hours"], row["amount"]) == ("", Decimal(10), Decimal(0))
    assert lines[0].price is None


def period(month: str, now: str) -> Period:
    first = parse_month(month)
    return Period(first=first, last=last_day(first), zone=BERLIN, now=at(now))


def test_a_budget_has_a_forecast_by_the_month_and_by_the_last_week() -> None:
    card = msgspec.structs.replace(
        CARD,
        budgets=(
            Budget(begin=date(2026, 1, 1), project="a", amount=Decimal(900), currency="EUR"),
            Budget(begin=date(2026, 10, 1), project="a", amount=Decimal(1000), currency="EUR"),
            Budget(begin=date(2026, 11, 1), project="a", amount=Decimal(1), currency="EUR"),
            Budget(begin=date(2026, 1, 1), amount=Decimal(5000), currency="EUR"),
        ),
    )
    # By the 11th at 00:00, 240 of October's 745 hours are over: 10 days of one GPU of a, 480 EUR,
    # and 2 hours of b, 4 EUR. In the last week a had 168 h x 2 = 336, b nothing.
    lines = lines_of(
        interval("10-01 00:00", None, number=1, project="a"),
        interval("10-01 00:00", "10-01 02:00", number=2, project="b"),
        now="10-11 00:00",
    )
    recent = lines_of(interval("10-04 00:00", "10-11 00:00", number=1, project="a"))
    judged = judge_budgets(card, period("2026-10", "10-11 00:00"), lines, recent)
    by_hand = {
        # 480 / 240 x 745; 480 + 336 / 168 x 505
        "a": ("1000.00", "480.00", "520.00", "1490.00", "1490.00"),
        # 484 / 240 x 745 = 1502.41666..; 484 + 1010
        "*": ("5000.00", "484.00", "4516.00", "1502.42", "1494.00"),
    }
    columns = ("budget", "spent", "left", "forecast", "recent_forecast")
    assert {row["project"]: tuple(str(row[c]) for c in columns) for row in judged} == by_hand
    over = judge_budgets(card, period("2026-10", "11-01 00:00"), lines, recent)
    assert {row["forecast"] for row in over} == {None}


def test_capacity_is_what_the_card_says_for_the_hours_that_were() -> None:
    card = msgspec.structs.replace(
        CARD,
        capacity=(
            Capacity(begin=date(2026, 1, 1), cluster="east", gpu_model="*h200*", installed=16),
            Capacity(
                begin=date(2026, 10, 25), cluster="east", gpu_model="*h200*", installed=16,
                reserved=4, drained=8,
            ),
        ),
    )  # fmt: skip
    lines = lines_of(
        interval("10-24 00:00", "10-26 00:00", num_gpus=8),
        interval("10-24 00:00", "10-26 00:00", num_gpus=8, number=2, cluster="west"),
    )
    # The 25th has 25 hours: 24 x 16 + 25 x 16 installed, 25 x 4 reserved, 25 x 8 drained, 49 x 8
    # allocated; 784 - 200 - 392 = 192 idle.
    days = Period(
        first=date(2026, 10, 24), last=date(2026, 10, 25), zone=BERLIN, now=at("12-01 00:00")
    )
    [row] = count_capacity(card, days, lines)
    assert {name: int(hours) for name, hours in row.items() if name.endswith("_hours")} == {
        "installed_gpu_hours": 784, "reserved_gpu_hours": 100, "drained_gpu_hours": 200,
        "allocated_gpu_hours": 392, "idle_gpu_hours": 192,
    }  # fmt: skip
