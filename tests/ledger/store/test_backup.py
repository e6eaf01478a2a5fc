"""A backup is of one moment, taken while events come in; a restore counts nothing again."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result
from sqlalchemy import create_engine, func, select, text, update

from lockstep_catalogue.ledger import JOBS_FINISHED
from lockstep_ledger.command import ledger as command
from lockstep_ledger.ingest.document import RefusedEvent
from lockstep_ledger.store.database import (
    OTHER_VERSION,
    StoreError,
    disposing,
    explained,
    open_store,
    store_url,
)
from lockstep_ledger.store.tables import events, jobs, metadata, store_version
from lockstep_ledger.store.transaction import Submission

from ..model.stored import differences
from ..service import JSON, LedgerProcess, ledger_process
from ..stories import Story, checked, delivery
from .test_ledger_restart import query, until_taken, wait_for, write_config
from .test_ledger_store import job_stories, opened, write

pytestmark = pytest.mark.timeout(180)


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])


@pytest.fixture(name="other_dsn", params=["sqlite", "postgresql"])
def _other_dsn(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store to restore into."""
    if request.param == "sqlite":
        return str(tmp_path / "restored.db")
    server = request.getfixturevalue("own_postgres")
    dsn: str = server.dsn
    return dsn


def contents(dsn: str) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table but the bases of counters."""
    engine = open_store(dsn)
    with engine.connect() as connection:
        found = {
            table.name: sorted(map(tuple, connection.execute(select(table))), key=repr)
            for table in metadata.sorted_tables
            if table.name != "counter_bases"
        }
    engine.dispose()
    return found


def test_what_is_restored_is_what_was_backed_up_on_either_store(
    dsn: str, other_dsn: str, tmp_path: Path
) -> None:
    path = tmp_path / "a backup.db"
    with opened(dsn) as writer:
        write(writer, *job_stories(20, seed=3))
        letter = RefusedEvent(refusal="type", reason="of the check", id="early")
        writer.write([Submission(checked(Story().start()), [letter])])
    assert run("backup", path, "--store", dsn).exit_code == 0
    assert path.stat().st_mode & 0o077 == 0
    assert run("restore", path, "--store", other_dsn).exit_code == 0
    assert contents(other_dsn) == contents(dsn)
    # What is numbered by the store goes on behind what was restored.
    with opened(other_dsn) as writer:
        write(writer, *(story for story in job_stories(25, seed=3)[20:]))
        assert differences(writer._engine) == []
    refusal = run("restore", path, "--store", other_dsn)
    assert refusal.exit_code == 2
    assert "restore into a new file or database" in refusal.output


@contextmanager
def delivering(ledger: LedgerProcess) -> Iterator[Callable[[], int]]:
    """Delivers jobs all the time; gives how many are answered."""
    answered, stop = count(), threading.Event()
    total = [0]

    def deliver() -> None:
        with httpx.Client(timeout=30) as client:
            for number in answered:
                story = Story(f"live-{number}", now=time.time() - 60).start(num_nodes=1).after(9)
                body = delivery(story.end().events)
                client.post(f"{ledger.url}/api/events", content=body, headers=JSON)
                total[0] = number + 1
                if stop.is_set():
                    return

    thread = threading.Thread(target=deliver)
    thread.start()
    try:
        yield lambda: total[0]
    finally:
        stop.set()
        thread.join()


def test_a_backup_while_events_come_in_is_of_one_moment(dsn: str, tmp_path: Path) -> None:
    with (
        ledger_process(dsn, "--max-rate", "100000") as ledger,
        delivering(ledger) as count_answered,
    ):
        for number in range(3):
            before = count_answered()
            while count_answered() < before + 20:
                time.sleep(0.01)
            first = count_answered()
            assert run("backup", tmp_path / f"{number}.db", "--store", dsn).exit_code == 0
            last = count_answered()
            engine = open_store(str(tmp_path / f"{number}.db"), read_only=True)
            assert differences(engine) == []
            with engine.connect() as connection:
                highest = connection.execute(select(func.max(events.c.sequence))).scalar()
                assert connection.execute(select(func.count(events.c.id))).scalar() == highest
                num_jobs = connection.execute(select(func.count(jobs.c.number))).scalar()
            # A job that is answered before is there; some come in meanwhile.
            assert num_jobs is not None
            assert first <= num_jobs <= last + 1
            engine.dispose()


def test_an_error_of_the_driver_itself_is_a_sentence_with_the_store(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'full.db'}")
    with pytest.raises(StoreError, match=r"full\.db"), explained(engine):
        raise sqlite3.OperationalError("disk is full")


def test_what_cannot_be_backed_up_or_restored_is_refused_in_a_sentence(tmp_path: Path) -> None:
    store, path = str(tmp_path / "ledger.db"), tmp_path / "notes.txt"
    path.write_text("my notes", encoding="utf-8")
    good = str(tmp_path / "good.db")
    open_store(good).dispose()
    for words, sentence in (
        (("backup", tmp_path / "b", "--store", store), "is not a file; start lockstep"),
        (("backup", path, "--store", good), "is there already; choose another name"),
        (("backup", tmp_path / "no" / "b", "--store", good), "does not exist; create it first"),
        (("restore", path, "--store", tmp_path / "new.db"), "file is not a database"),
    ):
        refused = run(*words)
        assert refused.exit_code == 2, refused.output
        assert sentence in refused.output
    sqlite3.connect(tmp_path / "empty.db").execute("CREATE TABLE t (x)").connection.close()
    refused = run("restore", tmp_path / "empty.db", "--store", tmp_path / "new.db")
    assert "holds no ledger" in refused.output
    assert sorted(each.name for each in tmp_path.iterdir() if each.name.startswith(".")) == []


def test_a_store_or_file_of_another_version_is_refused(dsn: str, tmp_path: Path) -> None:
    engine = open_store(dsn)
    own = str(tmp_path / "other.db")
    assert run("backup", own, "--store", dsn).exit_code == 0
    with disposing(create_engine(store_url(own))) as other, other.begin() as connection:
        connection.execute(update(store_version).values(version=9999))
    for command_words in (
        ("restore", own, "--store", tmp_path / "new.db"),
        ("jobs", "--store", own),
    ):
        refused = run(*command_words)
        assert (refused.exit_code, OTHER_VERSION in refused.output) == (2, True), refused.output
    engine.dispose()


@pytest.mark.server
@pytest.mark.release
@pytest.mark.parametrize("is_based", [True, False])
def test_increase_goes_on_over_a_restore_and_would_count_all_again_without_bases(
    tmp_path: Path,
    serve_prometheus: Callable[[Path], AbstractContextManager[str]],
    *,
    is_based: bool,
) -> None:
    finished = f"sum({JOBS_FINISHED.name})"
    store, restored = tmp_path / "ledger.db", tmp_path / "restored.db"

    def deliver(ledger: LedgerProcess, name: str, number: int) -> None:
        now = time.time() - 3000
        for index in range(number):
            story = Story(f"{name}-{index}", now=now).start(num_nodes=1).after(9).end()
            until_taken(ledger, [story.events])

    options = ("--scrape-interval", "1s", "--max-rate", "1000")
    with ledger_process(store, *options) as ledger:
        config = write_config(tmp_path, ledger.port)
        with serve_prometheus(config) as url, httpx.Client(base_url=url, timeout=30) as client:
            wait_for(client, finished, 0)
            deliver(ledger, "first", 30)
            wait_for(client, finished, 30)
            assert run("backup", tmp_path / "backup.db", "--store", store).exit_code == 0
            deliver(ledger, "lost", 5)  # after the backup: the store forgets them
            wait_for(client, finished, 35)
            ledger.stop()
            assert run("restore", tmp_path / "backup.db", "--store", restored).exit_code == 0
            if not is_based:
                with open_store(str(restored)).begin() as connection:
                    connection.execute(text("DELETE FROM counter_bases"))
            ledger.store = str(restored)
            ledger.start()
            wait_for(client, f"count(resets({JOBS_FINISHED.name}[10m]) > 0)", 1)
            deliver(ledger, "after", 10)
            wait_for(client, finished, 10 if is_based else 40)
            grown = query(client, f"sum(increase({JOBS_FINISHED.name}[10m]))")
            # The 5 that the store forgot were told before; without bases the 30 are told again.
            assert grown == pytest.approx(45 if is_based else 75, rel=0.15)
