"""What gets old is rolled up, thinned and made anonymous; counts and records stay the same."""

import random
from collections import Counter
from typing import Any

from sqlalchemy import Engine, insert, inspect, select, text

from lockstep_catalogue.ledger import SLO_WINDOWS
from lockstep_ledger.store.database import open_store
from lockstep_ledger.store.retention import Retention, Upkeep, roll_up
from lockstep_ledger.store.tables import events, jobs, slo_events, slo_rollups
from lockstep_ledger.store.windows import count_windows
from lockstep_ledger.store.writer import StoreWriter

from ..model.stored import differences
from ..stories import BEGIN, Story
from .test_ledger_store import opened, write

DAY = 86_400.0
NOW = BEGIN + 1234.5
Row = tuple[float, str, float, float]


def random_rows(dice: random.Random, number: int) -> list[Row]:
    """Time, class, good and total; many are young, some take an earlier row back."""
    rows = []
    for _ in range(number):
        age = dice.choice(
            [dice.uniform(0, 8000), dice.uniform(0, 2 * DAY), dice.uniform(0, 30 * DAY)]
        )
        total = float(dice.randint(1, 9))
        good = float(dice.randint(0, int(total)))
        row = (NOW - round(age * 8) / 8, dice.choice(["", "debug"]), good, total)
        rows.append(row)
        if dice.random() < 0.1:
            rows.append((row[0], row[1], -good, -total))
    return rows


def add(engine: Engine, rows: list[Row]) -> None:
    with engine.begin() as connection:
        connection.execute(
            insert(slo_events),
            [
                {
                    "time": t,
                    "cluster": "c",
                    "job_class": name,
                    "slo": "goodput",
                    "good": g,
                    "total": n,
                }
                for t, name, g, n in rows
            ],
        )


def counted_time(time: float) -> float:
    """The time at which a row counts: its own in the newest hour, else the begin of its bucket."""
    for size, age in ((3600, DAY), (60, 3600.0)):
        begin = time // size * size
        if begin + size <= NOW - age:
            return float(begin)
    return time


def expected(rows: list[Row]) -> dict[tuple[str, str], tuple[float, float]]:
    sums: dict[tuple[str, str], tuple[float, float]] = {}
    for time, name, good, total in rows:
        for window, seconds in SLO_WINDOWS.items():
            if NOW - seconds < counted_time(time) <= NOW:
                before = sums.get((name, window), (0.0, 0.0))
                sums[name, window] = (before[0] + good, before[1] + total)
    return sums


def roll_all(engine: Engine) -> int:
    steps, is_busy = 0, True
    while is_busy:
        with engine.begin() as connection:
            is_busy = roll_up(connection, NOW)
        steps += 1
    return steps


def test_windows_of_rolled_up_rows_differ_by_one_bucket_at_their_far_edge(dsn: str) -> None:
    rows = random_rows(random.Random(0), 160)
    engine = open_store(dsn)
    add(engine, rows[:100])
    exact = count_windows(engine, NOW).slo
    assert roll_all(engine) > 50
    add(engine, rows[100:])  # these come late
    roll_all(engine)
    counts = count_windows(engine, NOW).slo
    found = {(name, window): value for (_, name, _, window), value in counts.items()}
    assert found == {key: value for key, value in expected(rows).items() if key in found}
    assert {key for key, value in expected(rows).items() if any(value)} <= found.keys()
    for (name, window), value in found.items():
        if SLO_WINDOWS[window] <= 3600:
            inside = [r for r in rows if r[1] == name and r[0] > NOW - SLO_WINDOWS[window]]
            assert value == (sum(r[2] for r in inside), sum(r[3] for r in inside))
    assert exact  # there was something to count before
    with engine.connect() as connection:
        sizes = Counter(connection.execute(select(slo_rollups.c.seconds)).scalars())
        oldest_raw = connection.execute(text("SELECT min(time) FROM slo_events")).scalar()
    assert sizes.keys() == {60, 3600}
    assert oldest_raw is not None
    assert oldest_raw > NOW - 3660
    engine.dispose()


def old_story(dice: random.Random, number: int) -> Story:
    """A job of two nodes that reports for hours; some nodes fall silent."""
    story = Story(job_id=f"job-{number}", now=BEGIN + number * 100)
    nodes = ("n1", "n2")
    for attempt in range(dice.choice([1, 2, 3])):
        for node in nodes:
            story.start(node, attempt, num_nodes=2, num_gpus=16, user="ada", name="ada's run")
        productive: dict[str, float] = dict.fromkeys(nodes, 0.0)
        for step in range(30):
            story.after(60)
            for node in nodes:
                productive[node] += dice.choice([-5.0, 30.0, 55.0])
                seconds = {"productive": max(0.0, productive[node]) * 8, "hang": step * 8.0}
                story.add("goodput", node, attempt, rank_seconds=seconds, num_ranks=8, num_gpus=8)
                if step % 5 == 0:
                    story.add("checkpoint_durable", node, attempt, step=step)
                if step % 7 == 0:
                    story.add("rank_ended", node, attempt, rank=1, exception="/home/ada/train.py")
        for node in nodes if dice.random() < 0.7 else nodes[:1]:
            story.end(dice.choice(["failed", "succeeded"]), node, attempt, reason="ada forgot it")
        story.after(300)
    return story


def keep_house(writer: StoreWriter, now: float, **policy: float) -> None:
    upkeep = Upkeep(writer._engine, Retention(**policy))
    for _ in range(100):
        upkeep.take_turn(now)


def records(engine: Engine) -> list[Any]:
    names = ("number", "status", "outcome", "gpu_seconds", "started", "ended", "cause_node")
    with engine.connect() as connection:
        return list(connection.execute(select(*(jobs.c[name] for name in names))).all())


def count_events(engine: Engine) -> Counter[str]:
    with engine.connect() as connection:
        return Counter(connection.execute(select(events.c.kind)).scalars())


def test_thinned_events_give_the_same_records_and_counters(dsn: str) -> None:
    dice = random.Random(11)
    stories = [old_story(dice, number) for number in range(8)]
    with opened(dsn, node_seconds=0, requeue_seconds=0) as writer:
        write(writer, *stories)
        writer._clock = lambda: BEGIN + 500_000
        writer.settle_due()
        before, found = count_events(writer._engine), records(writer._engine)
        assert differences(writer._engine) == []
        later = BEGIN + 100 * DAY
        keep_house(writer, later, events_seconds=200 * DAY)
        assert count_events(writer._engine) == before
        keep_house(writer, later, events_seconds=90 * DAY)
        after = count_events(writer._engine)
        assert differences(writer._engine, now_seconds=later) == []
        assert records(writer._engine) == found
        assert after["goodput"] < before["goodput"] / 3
        assert after["rank_ended"] < before["rank_ended"] / 3
        whole_kinds = set(before) - {"goodput", "rank_ended", "checkpoint_durable"}
        assert {kind: after[kind] for kind in whole_kinds} == {
            kind: before[kind] for kind in whole_kinds
        }
        # What is heard of them after all still counts, and once.
        for story in stories:
            story.now = BEGIN + 1000
            late = Story(story.job_id, now=story.now).add("checkpoint_durable", "n2", step=12345)
            late.add("goodput", "n2", rank_seconds={"productive": 9999.0}, num_ranks=8, num_gpus=8)
            late.add("job_finished", "n2", attempt=9, outcome="failed")
            assert write(writer, late).stored == 3
        assert differences(writer._engine, now_seconds=later) == []


def test_names_of_people_leave_old_jobs_and_their_events(dsn: str) -> None:
    with opened(dsn, node_seconds=0, requeue_seconds=0) as writer:
        write(writer, *(old_story(random.Random(number), number) for number in range(3)))
        writer._clock = lambda: BEGIN + DAY
        writer.settle_due()
        young = Story(job_id="young", now=BEGIN + 50 * DAY).start(user="bob", name="b").after(9)
        writer._clock = lambda: BEGIN + 51 * DAY
        write(writer, young.end())
        keep_house(writer, BEGIN + 70 * DAY, names_seconds=30 * DAY)
        assert differences(writer._engine, now_seconds=BEGIN + 70 * DAY) == []
        with writer._engine.connect() as connection:
            texts = {
                str(value)
                for table in inspect(writer._engine).get_table_names()
                for row in connection.execute(text(f"SELECT * FROM {table}"))  # noqa: S608  # our own
                for value in row
            }
        assert not [value for value in texts if "ada" in value]
        assert [value for value in texts if "bob" in value]
