"""A month's statement by hand: ten jobs, two currencies, a price change, DST, two corrections.

Europe/Berlin, October 2026. The month begins on 2026-09-30T22:00Z and ends on 2026-10-31T23:00Z;
the 25th has 25 hours. All amounts below were worked out on paper before the ledger computed any.

=====  =======  =====  ==============================  ================================  ==========
job    project  GPUs   from, to (local)                GPU hours x price                 amount
=====  =======  =====  ==============================  ================================  ==========
j01    speech   8 H    1st 00:00, 10:00                80 x 2.10                         168.00 EUR
j02    speech   8 H    14th 20:00, 15th 04:00          32 x 2.10                          67.20 EUR
                       (the price changes at 00:00)    32 x 1.95                          62.40 EUR
j03    vision   16 H   25th 00:00, 26th 00:00          25 h x 16 = 400 x 1.80            720.00 EUR
j04    vision   1 H    2nd 00:00:00, 00:00:10          10 / 3600 x 1.80 = 0.005            0.01 EUR
j05    speech   4 A    5th 08:00:00, 11:20:07          12,007 s x 4 = 48,028 s
                                                       x 1.333 / 3600 = 17.78370...       17.78 USD
j06    speech   2 H    30 Sept 12:00, 1st 06:00        12 (October's) x 2.10              25.20 EUR
j07    speech   8 A    31st 20:00, 1 Nov 02:00         32 (October's) x 1.333 = 42.656    42.66 USD
j08    nlp      4 H    10th 10:00, 12:30               10 x 2.10, by the scheduler alone  21.00 EUR
j09    nlp      0      11th 10:00, 12:00               nothing
j10    nlp      2 L    20th 09:00, 09:50               6,000 s x 0.75 / 3600               1.25 USD
                                                       (its own price)
=====  =======  =====  ==============================  ================================  ==========

EUR: 168.00 + 67.20 + 62.40 + 720.00 + 0.01 + 25.20 + 21.00 = 1,063.81.
USD: 17.78 + 42.66 + 1.25 = 61.69.
By project, EUR: speech 168.00 + 67.20 + 62.40 + 25.20 = 322.80, vision 720.01, nlp 21.00;
USD: speech 60.44, nlp 1.25.

September has j06 alone: 12 h x 2 = 24 x 2.10 = 50.40 EUR.

Then October is closed, and two things are heard late:
- On the 20th j10 ran a second time, from 10:00 to 10:30: 9,600 s x 0.75 / 3600 = 2.00 USD,
  which is 0.75 more.
- From the 15th on vision pays 1.70: j03 costs 400 x 1.70 = 680.00 EUR, which is 40.00 less.
November: j07 has 2 h x 8 = 16 x 1.333 = 21.328, so 21.33 USD, and 0.75 makes 22.08 USD;
EUR -40.00.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import Connection, Engine

from lockstep_ledger.billing import months
from lockstep_ledger.billing.documents import Bills
from lockstep_ledger.billing.render import STATEMENT_COLUMNS, line_row, to_csv
from lockstep_ledger.money.accrual import Line
from lockstep_ledger.money.costs import read_question
from lockstep_ledger.money.rate_card import read_rate_card
from lockstep_ledger.store.database import open_store
from lockstep_ledger.store.transaction import Submission
from lockstep_ledger.store.writer import StoreWriter

from ..stories import Story, checked

BERLIN = ZoneInfo("Europe/Berlin")
RATES = """
rates:
  - {from: 2026-01-01, gpu_model: "*H200*", price_per_gpu_hour: 2.10, currency: EUR}
  - {from: 2026-10-15, gpu_model: "*H200*", price_per_gpu_hour: 1.95, currency: EUR}
  - {from: 2026-01-01, gpu_model: "*A100*", price_per_gpu_hour: 1.333, currency: USD}
  - from: 2026-10-01
    gpu_model: "*H200*"
    project: vision
    price_per_gpu_hour: 1.80
    currency: EUR
"""
NEW_RATES = f"""{RATES}
  - {{from: 2026-10-15, gpu_model: "*h200*", project: vision, price_per_gpu_hour: 1.70,
     currency: EUR}}
"""
H200, A100, L4 = "NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA L4"


def at(text: str) -> float:
    """Berlin's clock on a day of 2026; of the hour that is there twice the first."""
    return datetime.fromisoformat(f"2026-{text}").replace(tzinfo=BERLIN).timestamp()


def job(number: int, project: str, gpus: int, period: str, **fields: Any) -> Story:
    """The events of a job on one node, or of a scheduler where the fields say so."""
    begin, end = map(at, period.split(", "))
    node = fields.pop("node", "n1")
    story = Story(job_id=f"j{number:02}", now=begin)
    described = {"project": project, "user": f"u-{project}", "num_nodes": 1, **fields}
    story.add("job_started", node, num_gpus=gpus, **described)
    return story.after(end - begin).add("job_finished", node, outcome="succeeded")


OWN_PRICE = {"price_per_gpu_hour": 0.75, "currency": "USD"}
STORIES = (
    job(1, "speech", 8, "10-01 00:00, 10-01 10:00", gpu_model=H200),
    job(2, "speech", 8, "10-14 20:00, 10-15 04:00", gpu_model=H200),
    job(3, "vision", 16, "10-25 00:00, 10-26 00:00", gpu_model=H200),
    job(4, "vision", 1, "10-02 00:00:00, 10-02 00:00:10", gpu_model=H200),
    job(5, "speech", 4, "10-05 08:00:00, 10-05 11:20:07", gpu_model=A100),
    job(6, "speech", 2, "09-30 12:00, 10-01 06:00", gpu_model=H200),
    job(7, "speech", 8, "10-31 20:00, 11-01 02:00", gpu_model=A100),
    job(8, "nlp", 4, "10-10 10:00, 10-10 12:30", gpu_model="h200", node=None),
    job(9, "nlp", 0, "10-11 10:00, 10-11 12:00", gpu_model="h200", node=None),
    job(10, "nlp", 2, "10-20 09:00, 10-20 09:50", gpu_model=L4, **OWN_PRICE),
)  # fmt: skip
# Of the second run of j10, which its node could deliver in November only.
LATE = replace(STORIES[9], events=[], now=at("10-20 10:00"))
LATE.add("job_started", num_gpus=2, num_nodes=1).after(1800).add(
    "job_finished", outcome="succeeded"
)


def write(engine: Engine, *stories: Story, now: float) -> None:
    writer = StoreWriter(engine, clock=lambda: now)
    events = [
        event
        for story in stories
        for event in checked(
            replace(story, events=[e for e in story.events if e["time"] <= now]), now
        )
    ]
    submission = Submission(sorted(events, key=lambda event: event.time))
    writer.write([submission])
    assert submission.refused == []


@pytest.fixture(name="engine", params=["sqlite", "postgresql"])
def _engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    path = str(tmp_path / "ledger.db")
    engine = open_store(
        path if request.param == "sqlite" else request.getfixturevalue("postgres_store")
    )
    yield engine
    engine.dispose()


def bills(connection: Connection, folder: Path, now: str, rates: str = RATES) -> Bills:
    path = folder / "rates.yaml"
    path.write_text(rates, encoding="utf-8")
    return Bills(connection, read_rate_card(path), BERLIN, at(now))


def amounts(lines: list[Line]) -> list[tuple[str, str, str]]:
    return [(line.job.job_id, str(line.amount), line.currency) for line in lines]


def totals(document: dict[str, Any]) -> dict[str, str]:
    return {row["currency"]: str(row["amount"]) for row in document["totals"]}


OCTOBER = [
    ("j01", "168.00", "EUR"), ("j02", "67.20", "EUR"), ("j02", "62.40", "EUR"),
    ("j03", "720.00", "EUR"), ("j04", "0.01", "EUR"), ("j05", "17.78", "USD"),
    ("j06", "25.20", "EUR"), ("j07", "42.66", "USD"), ("j08", "21.00", "EUR"),
    ("j10", "1.25", "USD"),
]  # fmt: skip


def test_the_month_is_what_the_hand_says(engine: Engine, tmp_path: Path) -> None:
    write(engine, *STORIES, now=at("11-02 12:00"))
    with engine.begin() as connection:
        now = bills(connection, tmp_path, "11-02 12:00")
        document = now.statement("2026-10")
        assert sorted(amounts(document["lines"])) == sorted(OCTOBER)
        assert totals(document) == {"EUR": "1063.81", "USD": "61.69"}
        assert totals(now.statement("2026-09")) == {"EUR": "50.40"}
        costs = now.costs(read_question({"month": "2026-10"}, now.today))
        assert [(r["project"], str(r["amount"]), r["currency"]) for r in costs.rows] == [
            ("vision", "720.01", "EUR"), ("speech", "322.80", "EUR"), ("nlp", "21.00", "EUR"),
            ("speech", "60.44", "USD"), ("nlp", "1.25", "USD"),
        ]  # fmt: skip


def test_a_closed_month_stays_and_what_is_heard_late_is_booked_by_somebody(
    engine: Engine, tmp_path: Path
) -> None:
    write(engine, *STORIES, now=at("11-02 12:00"))
    with engine.begin() as connection:
        assert len(bills(connection, tmp_path, "11-02 12:00").close("2026-10", "ada")) == 10
        assert bills(connection, tmp_path, "11-02 13:00").differences("2026-10") == []

    write(engine, LATE, now=at("11-03 12:00"))
    with engine.begin() as connection:
        later = bills(connection, tmp_path, "11-03 13:00", NEW_RATES)
        lacking = sorted(later.differences("2026-10"), key=lambda line: line.job.job_id)
        assert amounts(lacking) == [("j03", "-40.00", "EUR"), ("j10", "0.75", "USD")]
        digest = read_rate_card(tmp_path / "rates.yaml").digest
        assert [line.event for line in lacking] == [f"rate card {digest}", LATE.events[-1]["id"]]
        # Shown, and not booked by itself: the closed month and the open one are as they were.
        assert totals(later.statement("2026-10")) == {"EUR": "1063.81", "USD": "61.69"}
        november = later.statement("2026-11")
        assert totals(november) == {"USD": "21.33"}
        assert sorted(amounts(november["differences"])) == amounts(lacking)
        with pytest.raises(ValueError, match="2026-11 is not over"):
            later.close("2026-11", "ada")

        audit = {"author": "grace", "reason": "a late node, a new price"}
        booked = months.book(connection, lacking, **audit, now=later.now)
        assert [(line.month, line.corrects) for line in booked] == [("2026-11", "2026-10")] * 2
        assert later.differences("2026-10") == []
        assert totals(later.statement("2026-10")) == {"EUR": "1063.81", "USD": "61.69"}
        november = later.statement("2026-11")
        assert totals(november) == {"EUR": "-40.00", "USD": "22.08"}
        text = to_csv(STATEMENT_COLUMNS, map(line_row, november["lines"]))
        assert "j03,vision,u-vision,NVIDIA H200,succeeded,0.00,,EUR,-40.00,2026-10,grace" in text
        assert f'2026-11-03 12:00:00,"a late node, a new price",rate card {digest}' in text


def test_a_running_job_costs_what_it_has_had_until_now(engine: Engine, tmp_path: Path) -> None:
    write(engine, STORIES[6], now=at("10-31 22:00"))
    with engine.begin() as connection:
        # 2 h x 8 = 16 x 1.333 = 21.328
        document = bills(connection, tmp_path, "10-31 22:00").statement("2026-10")
        assert amounts(document["lines"]) == [("j07", "21.33", "USD")]
        # An hour later: 24 x 1.333 = 31.992
        document = bills(connection, tmp_path, "10-31 23:00").statement("2026-10")
        assert amounts(document["lines"]) == [("j07", "31.99", "USD")]
        assert document["lines"][0].gpu_seconds == Decimal(3 * 8 * 3600)
