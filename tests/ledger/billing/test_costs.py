"""Days of 23 and 25 hours, groups that add up to their lines, budgets and capacity by hand."""

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from lockstep_ledger.billing import (
    BilledJob,
    CostQuestion,
    Costs,
    GpuInterval,
    Line,
    Period,
    accrue,
    count_capacity,
    group,
    judge_budgets,
)
from lockstep_outcomes.prices.price import PricedJob, Pricing, last_day, parse_month
from lockstep_outcomes.prices.rate_card import Budget, Capacity, Rate, RateCard

BERLIN = ZoneInfo("Europe/Berlin")
CARD = RateCard(
    rates=(
        Rate(begin=date(2026, 1, 1), price_per_gpu_hour=2.0, currency="EUR"),
        Rate(begin=date(2026, 1, 1), price_per_gpu_hour=3.0, currency="JPY", project="kyo"),
    )
)


def at(day: str) -> float:
    return datetime.fromisoformat(f"2026-{day}").replace(tzinfo=BERLIN).timestamp()


def interval(
    begin: str, end: str, states: Mapping[str, float] | None = None, **facts: Any
) -> GpuInterval:
    gpus = facts.pop("num_gpus", 1)
    described = {"number": 1, "cluster": "east", "job_id": "j", "gpu_model": "H200", **facts}
    return GpuInterval(
        job=BilledJob(**described),
        priced=PricedJob(facts.get("project", ""), "H200"),
        num_gpus=gpus,
        begin=at(begin),
        end=at(end),
        states=states or {},
    )


def lines_of(*intervals: GpuInterval, now: str = "12-31 00:00") -> list[Line]:
    return accrue(intervals, Pricing(CARD, BERLIN), at("01-01 00:00"), at(now))


def test_lines_do_not_depend_on_the_order_or_the_cuts_of_intervals() -> None:
    [line] = lines_of(interval("10-01 00:00", "10-09 07:00:01", num_gpus=8))
    pieces = [
        interval("10-04 03:33:33", "10-09 07:00:01", num_gpus=8),
        interval("10-01 00:00", "10-04 03:33:33", num_gpus=8),
    ]
    for parts in (pieces, pieces[::-1]):
        assert lines_of(*parts)[0].amount == pytest.approx(line.amount)
    assert lines_of(interval("10-01 00:00", "10-02 00:00", num_gpus=0)) == []
    assert lines_of(interval("10-02 00:00", "10-01 00:00")) == []


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
        interval("10-20 00:00", "12-31 00:00", {"hang": 1.0}, number=4, project="a"),
        now="10-22 13:00",
    )
    costs = grouped(lines, by, *OCTOBER)
    # 65:53:54 h x 2, 4:04:06 h x 2, 61 h x 2 EUR; 64 x 19 s x 3 JPY.
    amounts = [131.796667, 8.136667, 64 * 19 * 3 / 3600, 122.0]
    assert [line.amount for line in lines] == pytest.approx(amounts, rel=1e-6)
    totals = {row["currency"]: row for row in costs.totals}
    assert totals["EUR"]["amount"] == pytest.approx(131.796667 + 8.136667 + 122.0)
    # Two sevenths of the first two jobs, and all of the last.
    assert totals["EUR"]["wasted_amount"] == pytest.approx(139.933333 * 2 / 7 + 122.0)
    for currency, total in totals.items():
        rows = [row for row in costs.rows if row["currency"] == currency]
        for measure in ("gpu_hours", "wasted_gpu_hours", "amount", "wasted_amount"):
            assert sum(row[measure] for row in rows) == pytest.approx(total[measure])
    sorted_amounts = [row["amount"] for row in costs.rows if row["currency"] == "EUR"]
    assert sorted_amounts == sorted(sorted_amounts, reverse=True)


def test_a_range_of_days_costs_its_part_of_the_month() -> None:
    lines = lines_of(interval("10-02 12:00", "10-05 12:00"))  # 72 h x 2 = 144
    costs = grouped(lines, ("day",), date(2026, 10, 3), date(2026, 10, 4), "day")
    amounts = {row["day"]: row["amount"] for row in costs.rows}
    assert amounts == pytest.approx({"2026-10-03": 48.0, "2026-10-04": 48.0})


def test_time_without_a_price_is_there_and_costs_nothing() -> None:
    lines = accrue(
        [interval("10-01 00:00", "10-01 10:00")],
        Pricing(RateCard(), BERLIN),
        at("10-01 00:00"),
        at("11-01 00:00"),
    )
    [row] = grouped(lines, ("project",), *OCTOBER).rows
    assert (row["currency"], row["gpu_hours"], row["amount"]) == ("", 10.0, 0.0)
    assert lines[0].price is None


def period(month: str, now: str) -> Period:
    first = parse_month(month)
    return Period(first=first, last=last_day(first), zone=BERLIN, now=at(now))


def test_a_budget_has_a_forecast_by_the_month_and_by_the_last_week() -> None:
    card = msgspec.structs.replace(
        CARD,
        budgets=(
            Budget(begin=date(2026, 1, 1), project="a", amount=900.0, currency="EUR"),
            Budget(begin=date(2026, 10, 1), project="a", amount=1000.0, currency="EUR"),
            Budget(begin=date(2026, 11, 1), project="a", amount=1.0, currency="EUR"),
            Budget(begin=date(2026, 1, 1), amount=5000.0, currency="EUR"),
        ),
    )
    # By the 11th at 00:00, 240 of October's 745 hours are over: 10 days of one GPU of a, 480 EUR,
    # and 2 hours of b, 4 EUR. In the last week a had 168 h x 2 = 336, b nothing.
    lines = lines_of(
        interval("10-01 00:00", "12-31 00:00", number=1, project="a"),
        interval("10-01 00:00", "10-01 02:00", number=2, project="b"),
        now="10-11 00:00",
    )
    recent = lines_of(interval("10-04 00:00", "10-11 00:00", number=1, project="a"))
    judged = judge_budgets(card, period("2026-10", "10-11 00:00"), lines, recent)
    by_hand = {
        # 480 / 240 x 745; 480 + 336 / 168 x 505
        "a": (1000.0, 480.0, 520.0, 1490.0, 1490.0),
        # 484 + 1010
        "*": (5000.0, 484.0, 4516.0, 484.0 / 240 * 745, 1494.0),
    }
    columns = ("budget", "spent", "left", "forecast", "recent_forecast")
    found = {row["project"]: tuple(row[c] for c in columns) for row in judged}
    assert found == {project: pytest.approx(amounts) for project, amounts in by_hand.items()}
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
