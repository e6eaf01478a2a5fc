"""Jobs that change size, model, price and month while they run cost what is billed by hand."""

import math
from collections import defaultdict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import select

from lockstep_catalogue.ledger import COST
from lockstep_ledger.billing import Bills
from lockstep_ledger.merge.record import read_at
from lockstep_ledger.store.database import open_store
from lockstep_ledger.store.queries import job_document
from lockstep_ledger.store.tables import jobs
from lockstep_ledger.store.transaction import Submission
from lockstep_ledger.store.writer import StoreWriter
from lockstep_outcomes.prices.price import Pricing
from lockstep_outcomes.prices.rate_card import Rate, RateCard

from ..stories import BEGIN, Story, checked

MONTHS: dict[str, Any] = yaml.load(
    Path(__file__).with_name("two_months.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader
)
ATTEMPTS: dict[str, Any] = yaml.load(
    Path(__file__).with_name("attempts.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader
)
CARD = RateCard(
    rates=tuple(
        Rate(begin=begin, gpu_model=model, price_per_gpu_hour=price, currency="EUR")
        for begin, model, price in MONTHS["rates"]
    )
)
ENDS = {"completed": "succeeded", "requeued": "preempted", "failed": "failed"}


def at(text: str | float) -> float:
    if not isinstance(text, str):
        return BEGIN + text
    return datetime.fromisoformat(f"2026-{text}").replace(tzinfo=UTC).timestamp()


def story_of(job: dict[str, Any], now: float) -> Story:
    """What was said by a moment: parts of a scheduler, starts of launchers."""
    story = Story(job_id=job["job"])
    declared = job.get("declares", {})

    def say(time: float, kind: str, node: str | None = None, attempt: int = 0, **f: Any) -> None:
        story.now = time
        if time <= now:
            story.add(kind, node, attempt, **f)

    begun: dict[int, float] = {}
    last = max(at(until) for *_, until, _ in job["said"])
    for source, run, node, gpus, model, begin, end, state in job["said"]:
        since, until, is_last = at(begin), at(end), state in ENDS
        if source == "launcher":
            if run not in begun and not begun:
                say(since, "job_started", node, gpu_model=model)
            say(since, "attempt_started", node, run, num_gpus=gpus)
            begun[run] = since
            say(until, "job_finished" if is_last else "attempt_ended", node, run,
                outcome=ENDS.get(state, "failed"))  # fmt: skip
            continue
        if run not in begun:
            begun[run] = since
            say(since, "job_started", None, run, **declared)
        part = {"part": f"{node} {since}", "num_gpus": gpus, "gpu_model": model}
        say(since, "resources_allocated", None, run, **part)
        say(until if job.get("released", True) else math.inf,
            "resources_released", None, run, part=part["part"])  # fmt: skip
        if is_last:
            say(until, "job_finished", None, run, outcome=ENDS[state])
        if state == "requeued":
            say(until, "job_requeued", None, run)
    if begun and last > now:
        # Feeds say each day what still runs, and nodes each minute.
        is_fed = any(source != "launcher" for source, *_ in job["said"])
        say(now, "job_submitted", None if is_fed else job["said"][0][2])
    return story


DAY_SECONDS = 86_400.0


@pytest.mark.parametrize(
    ("words", "days", "hours", "is_estimated"),
    [
        ((), 6.9, 6.9 * 24, False),
        ((), 7.1, 0.0, True),
        ((1, 2, 3), 9.9, 9.9 * 24, False),
        ((1, 2, 3), 10.1, 72.0, True),
        ((1, 2, 3), 34.0, 72.0, True),
    ],
)
def test_a_grant_that_nobody_ends_counts_for_a_week_after_the_last_word(
    words: tuple[float, ...], days: float, hours: float, is_estimated: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    begin = at("10-01T00:00:00")
    story = Story(now=begin).add("job_started", None, num_gpus=1)
    for day in words:
        story.now = begin + day * DAY_SECONDS
        story.add("job_submitted", None)
    engine = open_store("sqlite:///:memory:")
    clock = [story.now]
    writer = StoreWriter(engine, clock=lambda: clock[0])
    writer.write([Submission(checked(story))])
    clock[0] = begin + days * DAY_SECONDS + 0.25  # a clock has no whole seconds
    monkeypatch.setattr("time.time", lambda: clock[0])
    writer.settle_due()
    with engine.connect() as connection:
        lines = Bills(connection, Pricing(), clock[0]).lines(date(2026, 10, 1), date(2026, 11, 30))
        record = job_document(connection, connection.execute(select(jobs)).one(), Pricing())
    assert sum(line.gpu_seconds for line in lines) / 3600 == pytest.approx(hours)
    assert record["gpu_seconds"] / 3600 == pytest.approx(hours)
    assert [run["is_estimated"] for run in record["runs_list"]] == [is_estimated]
    assert record["status"] == ("running" if days < 33 else "finished")


@pytest.mark.parametrize(("name", "moment"), MONTHS["moments"])
def test_every_line_is_right_while_jobs_run_and_after_their_end(
    name: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = at(moment)
    monkeypatch.setattr("time.time", lambda: now)
    pricing = Pricing(CARD, UTC)
    engine = open_store("sqlite:///:memory:")
    writer = StoreWriter(engine, clock=lambda: now, pricing=pricing)
    for job in MONTHS["jobs"]:
        if events := story_of(job, now).events:
            writer.write([Submission(checked(Story(events=events, now=now), now))])
    with engine.connect() as connection:
        bills = Bills(connection, pricing, now)
        lines = bills.lines(date(2026, 10, 1), date(2026, 11, 30))
        rows = connection.execute(select(jobs)).all()
        records = [job_document(connection, row, pricing) for row in rows]
    found: dict[str, list[list[Any]]] = defaultdict(list)
    for line in lines:
        row = [line.month, line.job.gpu_model, line.price, pytest.approx(line.amount)]
        found[line.job.job_id].append(row)
    expected = {job["job"]: job["bills"][name] for job in MONTHS["jobs"] if job["bills"][name]}
    assert {job: sorted(rows, key=str) for job, rows in found.items()} == {
        job: sorted(rows, key=str) for job, rows in expected.items()
    }
    amounts: dict[str, float] = defaultdict(float)
    for line in lines:
        amounts[line.job.job_id] += line.amount
    assert {r["job_id"]: sum(r["costs"].values()) for r in records if r["costs"]} == pytest.approx(
        {job_id: amount for job_id, amount in amounts.items() if amount}
    )
    counted = [
        row.value for (name, _), row in writer.counters.snapshot().items() if name == COST.name
    ]
    assert sum(counted) == pytest.approx(sum(amounts.values()))


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("name", ATTEMPTS)
def test_stays_of_nodes_are_runs_whatever_they_count(name: str, is_reversed: bool) -> None:
    job = ATTEMPTS[name]
    moment, *expected = job["is"]
    story = story_of({"job": name, **job}, at(moment))
    events = checked(story, at(moment))
    writer = StoreWriter(open_store("sqlite:///:memory:"), clock=lambda: at(moment))
    for event in reversed(events) if is_reversed else events:
        writer.write([Submission([event])])
    state = writer._state.memory.get(("east", name))
    assert state is not None
    record = state.record
    assert record is not None
    read_at(record, at(moment), Pricing())
    words = [[held, other] for _, field, other, held in record.disagreements if field != "outcome"]
    found = [record.run_number, record.gpu_seconds, record.outcome, *words]
    times = [[at(number) for number in pair] if pair[0] > 1000 else pair for pair in expected[3:]]
    assert found == [*expected[:3], *times]
