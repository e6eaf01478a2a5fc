"""The store: what is answered is there, once, and the counters are the model's."""

import gc
import json
import random
import traceback
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import event, select
from sqlalchemy.exc import SQLAlchemyError

from lockstep_ledger.merge.outcome import SettleTimeouts
from lockstep_ledger.store.counters import MAX_GROUPS, Counters
from lockstep_ledger.store.database import StoreError, open_store, writer_lock
from lockstep_ledger.store.job_states import JobState
from lockstep_ledger.store.tables import events, jobs
from lockstep_ledger.store.transaction import Submission
from lockstep_ledger.store.writer import StoreWriter

from ..model.stored import differences
from ..stories import BEGIN, Story, checked

OUTCOMES = ("succeeded", "succeeded", "failed", "preempted", "time_limit", "cancelled")


def job_stories(number: int, seed: int) -> list[Story]:
    dice = random.Random(seed)
    stories = []
    for index in range(number):
        story = Story(job_id=f"job-{index}", now=BEGIN + dice.randrange(1000))
        nodes = [f"n{node}" for node in range(dice.choice([1, 1, 2]))]
        for attempt in range(dice.choice([1, 1, 2, 4])):
            for node in nodes:
                project = dice.choice(["vision", "text"])
                story.start(node, attempt, num_nodes=len(nodes), num_gpus=8, project=project)
            story.after(dice.uniform(1, 500)).add("checkpoint_durable", attempt=attempt, step=5)
            seconds = {"productive": dice.uniform(0, 9), "hang": dice.uniform(0, 9)}
            story.add("goodput", attempt=attempt, rank_seconds=seconds, num_ranks=8, num_gpus=8)
            for node in nodes:
                story.end(dice.choice(OUTCOMES), node, attempt)
            story.after(5)
        stories.append(story)
    return stories


@contextmanager
def opened(dsn: str, **timeouts: float) -> Iterator[StoreWriter]:
    engine = open_store(dsn)
    try:
        yield StoreWriter(engine, SettleTimeouts(**timeouts), clock=lambda: BEGIN + 10_000)
    finally:
        engine.dispose()


def write(writer: StoreWriter, *stories: Story) -> Submission:
    submission = Submission([event for story in stories for event in checked(story)])
    writer.write([submission])
    return submission


def test_kinds_and_members_that_nobody_knows_are_stored_unharmed(dsn: str) -> None:
    story = Story().add("of_the_future", depth={"a": [1, None, "ü\t"]})
    story.events[0]["colour"] = "red"
    with opened(dsn) as writer:
        write(writer, story)
        with writer._engine.connect() as connection:
            row = connection.execute(select(events)).one()
    names = ("id", "kind", "attempt", "time")
    stored = {name: getattr(row, name) for name in names} | json.loads(row.body)
    columns = {"cluster", "node", "job_id"}
    expected = {name: v for name, v in story.events[0].items() if name not in columns}
    assert stored == expected


def test_a_transaction_that_fails_leaves_nothing_in_store_and_memory(dsn: str) -> None:
    with opened(dsn) as writer:
        good, lost, later = job_stories(3, seed=3)
        write(writer, good)

        @event.listens_for(writer._engine, "commit", once=True)
        def _fail(_connection: object) -> None:
            raise SQLAlchemyError("the disk is full")

        with pytest.raises(SQLAlchemyError, match="disk is full"):
            write(writer, lost)
        assert differences(writer._engine) == []
        write(writer, later)
        write(writer, lost)
        assert differences(writer._engine) == []
        with writer._engine.connect() as connection:
            assert sorted(connection.execute(select(jobs.c.number)).scalars()) == [1, 2, 3]


def test_a_second_ledger_on_one_store_is_refused(dsn: str) -> None:
    first, second = open_store(dsn), open_store(dsn)
    with (
        writer_lock(first),
        pytest.raises(StoreError, match="has a running ledger"),
        writer_lock(second),
    ):
        pass
    with writer_lock(second):
        pass
    first.dispose()
    second.dispose()


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("mysql://x/y", "must be a path of SQLite or postgresql"),
        ("sqlite://", "must be a path of SQLite or postgresql"),
        ("://", "is not an address"),
        ("/nowhere/there/ledger.db", "cannot be opened: No such file or directory; name a file"),
        ("postgresql://nobody@127.0.0.1:1/x", "cannot be opened: connection"),
    ],
)
def test_a_store_that_does_not_open_is_refused_in_a_sentence(address: str, sentence: str) -> None:
    with pytest.raises(StoreError, match=sentence):
        open_store(address)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:hunter2@127.0.0.1:1/x",
        "postgresql://me:pass@hunter2@127.0.0.1:1/x",
        "postgresql://me:hunter2@127.0.0.1:port/x",
        "postgresql://127.0.0.1:1/x?user=me&password=hunter2",
        "postgresql://me:[hunter2@127.0.0.1:1/x",
        "mysql://me:hunter2@host/x",
        " postgresql://me:hunter2@host/x",
        "postgresql//me:hunter2@://host/x",
    ],
)
def test_no_password_is_in_the_sentence(address: str) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(address)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    assert str(caught.value).startswith("store")


def test_a_file_of_another_program_is_refused_and_left_as_it_is(tmp_path: object) -> None:
    path = f"{tmp_path}/notes.txt"
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123  # as a user has it
        file.write("my notes, which are no database and never were one")
    with pytest.raises(StoreError, match="file is not a database"):
        open_store(path)


def test_projects_without_end_are_counted_as_other_from_a_limit_on() -> None:
    counters = Counters()
    counters._groups = {("east", "", f"p{n}", "") for n in range(MAX_GROUPS)}
    group = counters._group(("east", "q", "one-too-many", ""))
    assert group == ("east", "other", "other", "other")
    assert counters._group(("east", "", "p7", "")) == ("east", "", "p7", "")


def test_a_job_that_leaves_the_memory_is_freed_without_a_search_for_cycles(tmp_path: Path) -> None:
    gc.collect()
    others = {id(each) for each in gc.get_objects() if type(each) is JobState}
    gc.disable()  # a ledger that serves searches hardly ever
    try:
        with opened(str(tmp_path / "ledger.db")) as writer:
            story = Story().start("n1", num_nodes=1).after(10)
            writer.write([Submission(checked(story.end()))])
            # isinstance would ask __class__ of torch's deprecated objects, which warn.
            states = [each for each in gc.get_objects() if type(each) is JobState]
            [state] = [each for each in states if id(each) not in others]
            del states
            freed = weakref.ref(state.derivation)
            assert freed() is not None
            del state
            writer._state.memory.clear()
            assert freed() is None
    finally:
        gc.enable()
