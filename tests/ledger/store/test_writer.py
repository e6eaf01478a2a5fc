"""Several ledgers on one store, and a store that fails: nothing is lost or counts twice."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import pytest
from servers import wait_until
from sqlalchemy import Engine, create_engine, event, select, text
from sqlalchemy.exc import SQLAlchemyError

from lockstep_catalogue.ledger import JOBS, JOBS_FINISHED, LEADS, SLO_EVENTS
from lockstep_ledger.store import writer as store_writer
from lockstep_ledger.store.database import open_store, store_url
from lockstep_ledger.store.tables import events, jobs
from lockstep_ledger.store.transaction import Submission
from lockstep_ledger.store.writer import SharedWriter, StoreWriter, count_inbox

from ..model.stored import differences
from ..postgres_server import PostgresServer
from ..service import application
from ..stories import Story, checked, delivery
from .test_ledger_store import job_stories


class AnswerProxy:
    """Passes bytes on until ``fault`` is set; it comes true at the next COMMIT, once."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.fault: Literal["", "cut", "silence"] = ""
        self.commits_lost = 0

    @property
    def dsn(self) -> str:
        return f"postgresql://ledger@127.0.0.1:{self.port}/postgres"

    def run(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                upstream = socket.socket(socket.AF_UNIX)
                upstream.connect(str(self._server))
                threading.Thread(target=self._serve, args=(client, upstream), daemon=True).start()

    def _serve(self, client: socket.socket, upstream: socket.socket) -> None:
        lost: list[str] = []
        back = threading.Thread(target=self._answer, args=(client, upstream, lost), daemon=True)
        back.start()
        with suppress(OSError), client, upstream:
            while chunk := client.recv(65536):
                if self.fault and b"COMMIT" in chunk:
                    lost.append(self.fault)
                    self.fault = ""
                upstream.sendall(chunk)
            upstream.shutdown(socket.SHUT_RDWR)

    def _answer(self, client: socket.socket, upstream: socket.socket, lost: list[str]) -> None:
        with suppress(OSError):
            while chunk := upstream.recv(65536):
                if not lost:
                    client.sendall(chunk)
                    continue
                # By its answer the server has committed.
                self.commits_lost += 1
                if lost == ["cut"]:
                    break
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def answer_proxy(server: Path) -> Iterator[AnswerProxy]:
    proxy = AnswerProxy(server)
    thread = threading.Thread(target=proxy.run, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join(5)


@contextmanager
def shared(dsn: str) -> Iterator[SharedWriter]:
    engine = open_store(dsn)
    writer = SharedWriter(engine, StoreWriter)
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()
        engine.dispose()


def submission(story: Story) -> Submission:
    return Submission(checked(story))


def until_stored(writer: SharedWriter, story: Story) -> int:
    """Sends again until it is answered, as a node does; how often it was refused."""
    for attempt in range(20):
        try:
            writer.write([submission(story)])
        except SQLAlchemyError:
            until_done(writer.settle_due)
            continue
        return attempt
    raise AssertionError("the ledger takes nothing")


def until_done(work: Callable[[], Any]) -> None:
    for _ in range(20):
        try:
            work()
        except SQLAlchemyError:
            continue
        return
    raise AssertionError("the store does not come back")


def assert_whole(dsn: str, stories: list[Story]) -> None:
    """Every event is stored once, every job is there once, and the counters are the model's."""
    engine = open_store(dsn, read_only=True)
    with engine.connect() as connection:
        ids = sorted(connection.execute(select(events.c.id)).scalars())
        names = sorted(connection.execute(select(jobs.c.job_id)).scalars())
        assert count_inbox(connection) == 0
    assert ids == sorted(event["id"] for story in stories for event in story.events)
    assert names == sorted(story.job_id for story in stories)
    assert differences(engine) == []
    engine.dispose()


def end_sessions(engine: Engine) -> None:
    """Ends every other connection to the server, as a fail-over does, and its locks with it."""
    with engine.begin() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
        )


def test_who_does_not_lead_takes_events_and_the_leader_stores_them(postgres_store: str) -> None:
    stories = job_stories(12, seed=4)
    with shared(postgres_store) as first, shared(postgres_store) as second:
        assert (first.leads, second.leads) == (True, False)
        for number, story in enumerate(stories):
            (first, second)[number % 2].write([submission(story)])
            second.write([submission(story)])  # a node that lost the answer sends it again
        second.settle_due()
        assert second.inbox_size == 3  # the leader takes them with what comes to itself
        assert second.counters.snapshot() == {}
        first.settle_due()
        assert_whole(postgres_store, stories)
        first.stop()
        while not second.leads:  # the server ends the other's session a moment later
            second.settle_due()
        assert not first.leads
        assert second.sequence == sum(len(story.events) for story in stories)


def test_a_leader_whose_connection_ends_leads_no_more_and_doubles_nothing(
    postgres_store: str,
) -> None:
    stories = job_stories(30, seed=5)
    admin = create_engine(store_url(postgres_store))
    with shared(postgres_store) as first, shared(postgres_store) as second:
        for number, story in enumerate(stories):
            if number % 3 == 0:
                end_sessions(admin)
                # Whoever asks first leads then: the two take turns.
                turn = (first, second)[:: 1 if number % 2 else -1]
                for writer in turn:
                    until_done(writer.settle_due)
                assert [writer.leads for writer in turn] == [True, False]
            until_stored((first, second)[number // 2 % 2], story)
        for writer in (first, second, first):
            until_done(writer.settle_due)
        assert_whole(postgres_store, stories)
    admin.dispose()


@pytest.mark.parametrize("fault", ["cut", "silence"])
def test_a_lost_answer_to_a_commit_neither_stops_intake_nor_doubles_it(
    own_postgres: PostgresServer, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_writer, "ANSWER_SECONDS", 1.0)
    stories = job_stories(10, seed=6)
    with answer_proxy(own_postgres.socket_path) as proxy, shared(proxy.dsn) as writer:
        refusals = 0
        for number, story in enumerate(stories):
            if number % 4 == 1:
                proxy.fault = fault
            refusals += until_stored(writer, story)
        assert proxy.commits_lost == refusals == 3
        while not writer.leads:  # the server may not have noticed that the last session ended
            until_done(writer.settle_due)
        assert_whole(own_postgres.dsn, stories)


def test_intake_goes_on_after_postgresql_was_killed(own_postgres: PostgresServer) -> None:
    stories = job_stories(6, seed=8)
    with application(own_postgres.dsn, requests_per_second=1000) as (client, parts, _):
        for number, story in enumerate(stories):
            if number % 2:
                own_postgres.stop("immediate")
                answer = client.post("/api/events", content=delivery(story.events))
                assert answer.status_code == 503
                ready = client.get("/ready")
                assert ready.status_code == 503
                assert "the store takes no events: " in ready.text
                assert client.get("/healthz").status_code == 200
                own_postgres.start()
            wait_until(lambda: client.get("/ready").status_code == 200)
            answer = client.post("/api/events", content=delivery(story.events))
            assert answer.status_code == 200
        wait_until(lambda: parts.writer.leads and parts.writer.inbox_size == 0)
        assert client.get("/ready").text == "ok: this ledger leads\n"
    assert_whole(own_postgres.dsn, stories)


def test_a_read_only_store_is_said_and_a_writable_one_is_taken_up(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_writer, "_PROBE_SECONDS", 0.0)
    admin = create_engine(store_url(own_postgres.dsn), isolation_level="AUTOCOMMIT")

    def set_read_only(value: str) -> None:
        with admin.connect() as connection:
            connection.execute(text("SET default_transaction_read_only = off"))
            connection.execute(text(f"ALTER SYSTEM SET default_transaction_read_only = {value}"))
            connection.execute(text("SELECT pg_reload_conf()"))

    first, second = job_stories(2, seed=9)
    with application(own_postgres.dsn) as (client, _, _):
        assert client.post("/api/events", content=delivery(first.events)).status_code == 200
        set_read_only("on")
        # Nobody sends anything: the ledger tries by itself whether the store takes what comes.
        wait_until(lambda: client.get("/ready").status_code == 503)
        assert "read-only transaction" in client.get("/ready").text
        assert client.post("/api/events", content=delivery(second.events)).status_code == 503
        assert client.get("/api/jobs").json()["jobs"][0]["job_id"] == first.job_id
        set_read_only("off")
        wait_until(lambda: client.get("/ready").status_code == 200)
        assert client.post("/api/events", content=delivery(second.events)).status_code == 200
        wait_until(lambda: "leads" in client.get("/ready").text)
    admin.dispose()
    assert_whole(own_postgres.dsn, [first, second])


def test_a_full_disk_is_said_and_one_with_room_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_writer, "_PROBE_SECONDS", 0.0)
    dsn = str(tmp_path / "ledger.db")
    stories = job_stories(40, seed=10)
    limit = {"pages": 10**6}
    with ExitStack() as stack:
        client, parts, _ = stack.enter_context(application(dsn, requests_per_second=1000))

        @event.listens_for(parts.engine, "checkout")
        def _limit(connection: Any, _record: object, _proxy: object) -> None:
            connection.execute(f"PRAGMA max_page_count={limit['pages']}").fetchall()

        assert client.post("/api/events", content=delivery(stories[0].events)).status_code == 200
        limit["pages"] = 1  # it cannot fall below what the file has
        statuses = [
            client.post("/api/events", content=delivery(story.events)).status_code
            for story in stories[1:]
        ]
        assert 503 in statuses
        assert client.get("/healthz").status_code == 200
        limit["pages"] = 10**6
        for story in stories:
            wait_until(lambda: client.get("/ready").status_code == 200)
            answer = client.post("/api/events", content=delivery(story.events))
            assert answer.status_code == 200
        wait_until(lambda: parts.writer.inbox_size == 0)
    assert_whole(dsn, stories)


def test_only_the_leader_serves_the_counters_of_the_store(postgres_store: str) -> None:
    story = Story(now=time.time() - 100).start(num_nodes=1).after(9).end()
    with (
        application(postgres_store) as (leader, parts, _),
        application(postgres_store) as (other, other_parts, _),
    ):
        assert other.get("/ready").text == "ok: this ledger leaves deliveries for the leader\n"
        answer = other.post("/api/events", content=delivery(story.events))
        assert answer.json() == {"stored": len(story.events), "duplicates": 0, "rejected": []}
        wait_until(lambda: (parts.writer.sequence or 0) == len(story.events))
        # Reads are answered by both from the store.
        path = f"/api/jobs/{story.job_id}"
        wait_until(lambda: other.get(path).json().get("outcome") == "succeeded")
        scrapes = [client.get("/metrics").text for client in (leader, other)]
        assert [f"\n{LEADS.name} {value}\n" in scrape for scrape, value in zip(
            scrapes, ("1.0", "0.0"), strict=True
        )] == [True, True]  # fmt: skip
        for metric in (JOBS_FINISHED, SLO_EVENTS, JOBS):
            assert [f"\n{metric.name}{{" in scrape for scrape in scrapes] == [True, False]
        # The leader ends: the other one takes over by itself.
        parts.group_commit.stop()
        parts.writer.stop()
        wait_until(lambda: other_parts.writer.leads)
        assert f"\n{JOBS_FINISHED.name}{{" in other.get("/metrics").text
