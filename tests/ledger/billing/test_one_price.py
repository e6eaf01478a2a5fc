"""A GPU-hour has one price: six places are asked for the cost of the same ten jobs.

Europe/Berlin, the week from 2026-10-12 on; the card changes on the 15th at 00:00. By hand:

=====  ====  ==================  ===================================================  =============
job    GPUs  from, to (local)    GPU hours x price                                    cost
=====  ====  ==================  ===================================================  =============
j01    8 H   12th 00:00, 10:00   80 x 2.10                                            168.00 EUR
j02    8 H   14th 20:00, +8 h    32 x 2.10 + 32 x 1.95                                129.60 EUR
vision 16 H  16th 00:00, +24 h   384 x 1.80 (the rate of the project)                 691.20 EUR
j04    4 A   13th 08:00, 11:20:07  48,028 s x 1.333 / 3600                            17.7837 USD
j05    2 L   13th 09:00, 09:50   6,000 s x 0.75 / 3600 (its own price)                1.25 USD
j06    2 L   13th 09:00, 10:00   2 x 3 (its own price, without a currency)            6.00 CHF
j07    2 L   13th 09:00, 10:00   neither a rate nor a price of its own                nothing
j08    8 H   13th 09:00, 10:00   8 x 2.10 (its own price of 9 GBP gives way)          16.80 EUR
moved  1 A   14th 12:00, +24 h   12 x 1.00 EUR + 12 x 1.00 USD                        two
j10    4 H   13th 10:00, 12:30   10 x 2.10, by the scheduler alone                    21.00 EUR
=====  ====  ==================  ===================================================  =============
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from lockstep_catalogue.ledger import COST
from lockstep_dashboards.layout import FOLDER as LAYOUTS
from lockstep_ledger.commands.review import parse_week, weekly_review
from lockstep_ledger.web.app import Parts
from lockstep_outcomes.prices.price import Pricing
from lockstep_outcomes.prices.rate_card import read_rate_card
from lockstep_records.events.event import Event
from lockstep_reports.recording.recording import Recording
from lockstep_reports.recording.steps import timed_steps
from lockstep_reports.report import find_price

from ..service import application
from ..stories import Story, delivery

BERLIN = ZoneInfo("Europe/Berlin")
CARD = """
currency: CHF
rates:
  - {from: 2026-01-01, gpu_model: "*H200*", price_per_gpu_hour: 2.10, currency: EUR}
  - {from: 2026-10-15, gpu_model: "*H200*", price_per_gpu_hour: 1.95, currency: EUR}
  - {from: 2026-01-01, gpu_model: "*A100*", price_per_gpu_hour: 1.333, currency: USD}
  - {from: 2026-10-01, project: vision, price_per_gpu_hour: 1.80, currency: EUR}
  - {from: 2026-10-01, project: moved, price_per_gpu_hour: 1, currency: EUR}
  - {from: 2026-10-15, project: moved, price_per_gpu_hour: 1, currency: USD}
"""
H200, A100, L4 = "NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA L4"
Costs = dict[str, float]


def at(text: str) -> float:
    return datetime.fromisoformat(f"2026-10-{text}").replace(tzinfo=BERLIN).timestamp()


def job(name: str, gpus: int, begin: str, hours: float, model: str, **fields: Any) -> Story:
    node = fields.pop("node", "n1")
    story = Story(job_id=name, now=at(begin))
    described = {"project": name, "num_nodes": 1, "gpu_model": model, **fields}
    story.add("job_started", node, num_gpus=gpus, **described)
    return story.after(hours * 3600).add("job_finished", node, outcome="succeeded")


JOBS: dict[str, tuple[Story, Costs]] = {
    story.job_id: (story, costs)
    for story, costs in (
        (job("j01", 8, "12 00:00", 10, H200), {"EUR": 168.0}),
        (job("j02", 8, "14 20:00", 8, H200), {"EUR": 129.6}),
        (job("vision", 16, "16 00:00", 24, H200), {"EUR": 691.2}),
        (job("j04", 4, "13 08:00", 12_007 / 3600, A100), {"USD": 48_028 * 1.333 / 3600}),
        (
            job("j05", 2, "13 09:00", 5 / 6, L4, price_per_gpu_hour=0.75, currency="USD"),
            {"USD": 1.25},
        ),
        (job("j06", 2, "13 09:00", 1, L4, price_per_gpu_hour=3.0), {"CHF": 6.0}),
        (job("j07", 2, "13 09:00", 1, L4), {}),
        (job("j08", 8, "13 09:00", 1, H200, price_per_gpu_hour=9.0, currency="GBP"), {"EUR": 16.8}),
        (job("moved", 1, "14 12:00", 24, A100), {"EUR": 12.0, "USD": 12.0}),
        (job("j10", 4, "13 10:00", 2.5, "h200", node=None), {"EUR": 21.0}),
    )
}


@pytest.fixture(name="pricing", scope="module")
def _pricing(tmp_path_factory: pytest.TempPathFactory) -> Pricing:
    path = tmp_path_factory.mktemp("card") / "rates.yaml"
    path.write_text(CARD, encoding="utf-8")
    return Pricing(read_rate_card(path), BERLIN)


def deliver(client: TestClient) -> None:
    for story, _ in JOBS.values():
        assert client.post("/api/events", content=delivery(story.events)).json()["rejected"] == []


@pytest.fixture(name="ledger", scope="module")
def _ledger(
    tmp_path_factory: pytest.TempPathFactory, pricing: Pricing
) -> Iterator[tuple[TestClient, Parts]]:
    store = str(tmp_path_factory.mktemp("store") / "ledger.db")
    with application(store, pricing=pricing, hold_seconds=0.0) as (client, parts, _):
        deliver(client)
        yield client, parts


def by_job(rows: list[tuple[str, str, float]]) -> dict[str, Costs]:
    found: dict[str, Costs] = defaultdict(dict)
    for name, currency, amount in rows:
        found[name][currency] = found[name].get(currency, 0.0) + amount
    return {name: {c: a for c, a in found[name].items() if a} for name in JOBS}


def ask_counters(_client: TestClient, parts: Parts) -> dict[str, Costs]:
    counters = parts.writer.counters.snapshot().items()
    rows = [(key[1][2], key[1][4], row.value) for key, row in counters if key[0] == COST.name]
    return by_job(rows)


def ask_record(client: TestClient, _parts: Parts) -> dict[str, Costs]:
    return {name: client.get(f"/api/jobs/{name}").json()["costs"] for name in JOBS}


def ask_board(client: TestClient, _parts: Parts) -> dict[str, Costs]:
    """The counter that the executive board sums, as it is scraped."""
    assert COST.name in (LAYOUTS / "executive.yaml").read_text(encoding="utf-8")
    families = text_string_to_metric_families(client.get("/metrics").text)
    samples = [s for family in families for s in family.samples if s.name == COST.name]
    return by_job([(s.labels["project"], s.labels["currency"], s.value) for s in samples])


def ask_review(_client: TestClient, parts: Parts) -> dict[str, Costs]:
    with parts.engine.connect() as connection:
        review = weekly_review(connection, parse_week("2026-W42"), None)
    return {row["project"]: row["costs"] for row in review.projects}


def ask_statement(client: TestClient, _parts: Parts) -> dict[str, Costs]:
    lines = client.get("/api/statement?month=2026-10").json()["lines"]
    return by_job([(line["job_id"], line["currency"], line["amount"]) for line in lines])


@pytest.mark.parametrize("ask", [ask_counters, ask_record, ask_board, ask_review, ask_statement])
def test_every_place_of_the_ledger_knows_what_ten_jobs_cost(
    ledger: tuple[TestClient, Parts], ask: Any
) -> None:
    expected = {name: pytest.approx(costs) for name, (_, costs) in JOBS.items()}
    assert ask(*ledger) == expected


@pytest.mark.parametrize("name", JOBS)
def test_a_report_prices_a_job_as_the_ledger_does(pricing: Pricing, name: str) -> None:
    story, costs = JOBS[name]
    names = ("kind", "job_id", "attempt", "time", "fields")
    events = tuple(Event(**{each: event[each] for each in names}) for event in story.events)
    begin, end = (event.time for event in events)
    steps = timed_steps(name, [0], np.arange(4), np.full((1, 4), (end - begin) / 4))
    steps = replace(steps, start=begin + np.arange(4)[None, :] * (end - begin) / 4)
    recording = Recording(source_kind="pages", path=Path(name), steps=steps, events=events)
    price = find_price(recording, pricing)
    gpu_hours = events[0].fields["num_gpus"] * (end - begin) / 3600
    # Amounts of two currencies are never added up, so there is no mean of them.
    expected = costs if len(costs) == 1 else {}
    found = {} if price is None else {price.currency: price.per_gpu_hour * gpu_hours}
    assert found == pytest.approx(expected)


def test_a_new_card_prices_old_jobs_at_the_next_start(tmp_path: Path, pricing: Pricing) -> None:
    store = str(tmp_path / "ledger.db")
    with application(store) as (client, parts, _):
        deliver(client)
        assert ask_record(client, parts)["j08"] == {"GBP": 72.0}
        assert client.get("/api/jobs/j08").json()["rate_card"] == Pricing().digest
    with application(store, pricing=pricing, hold_seconds=0.0) as (client, parts, _):
        expected = {name: pytest.approx(costs) for name, (_, costs) in JOBS.items()}
        assert ask_record(client, parts) == expected
        document = client.get("/api/jobs/j08").json()
        assert document["rate_card"] == pricing.digest
        amended = {(a["field"], a["why"]) for a in document["amendments"]}
        assert (COST.name, f"rate card {pricing.digest}") in amended
        # What a counter held at the old price stays in it; the amendments say so.
        assert ask_counters(client, parts)["j08"] == {"GBP": 72.0, "EUR": pytest.approx(16.8)}
        # An unchanged job is priced by the new card all the same.
        assert client.get("/api/jobs/j05").json()["rate_card"] == pricing.digest
