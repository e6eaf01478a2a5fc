"""Events of jobs on their way to the ledger, and pages on theirs to the archive."""

import itertools
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest

from lockstep_agent.delivery.archive import Copier
from lockstep_agent.delivery.sender import Delivery, Post, post
from lockstep_agent.delivery.spool import Spool
from lockstep_agent.options import Options
from lockstep_agent.state_file import StateFile
from lockstep_catalogue import health
from lockstep_records.events import Event, append_event
from lockstep_records.job_retention import archived_jobs
from lockstep_records.jobs import job_folder
from lockstep_records.page.reader import read_page

from .live_page import LivePage
from .test_agent_command import running_agent, within_ten_seconds


class Ledger(HTTPServer):
    """A ledger that keeps the events it receives and answers with the statuses that a test sets."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.statuses: list[int] = []
        self.bad_ids: set[str] = set()
        self.bodies: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/events"

    @property
    def ids(self) -> list[str]:
        return [event["id"] for body in self.bodies for event in body["events"]]


class _Answer(BaseHTTPRequestHandler):
    server: Ledger

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        if self.server.bad_ids & {event["id"] for event in body["events"]}:
            status = 422
        if status == 200:
            self.server.bodies.append(body)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name it overrides
        pass


@pytest.fixture(name="ledger")
def _ledger() -> Iterator[Ledger]:
    ledger = Ledger()
    thread = threading.Thread(target=ledger.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield ledger
    ledger.shutdown()
    thread.join()
    ledger.server_close()


def add_event(root: Path, number: int, job: str = "job") -> None:
    event = Event(kind="attempt_started", job_id=job, attempt=number, id=f"{job}-{number}")
    append_event(job_folder(root, job), event)


class Agent:
    """The delivery of an agent, with a clock that a test sets forward."""

    def __init__(
        self, root: Path, state: Path, url: str, most: int = 10_000, send: Post = post
    ) -> None:
        self.now = 0.0
        self.spool = Spool(root, StateFile(state / "spool.json"), most)
        origin = ("east", "node-7")
        self.delivery = Delivery(self.spool, url, origin, send, clock=lambda: self.now)

    def tick(self, seconds: float = 0.0) -> dict[tuple[str, ...], float]:
        self.now += seconds
        return {reading.labels: reading.value for reading in self.delivery.collect()}


def test_events_arrive_once_in_order_with_their_origin(tmp_path: Path, ledger: Ledger) -> None:
    agent = Agent(tmp_path, tmp_path, ledger.url)
    for number in range(3):
        add_event(tmp_path, number)
    assert agent.tick() == {(): 0, ("delivered",): 3, ("refused",): 0, ("dropped",): 0}
    add_event(tmp_path, 3)
    agent.tick()
    agent.tick()
    assert ledger.ids == ["job-0", "job-1", "job-2", "job-3"]
    [first, _] = ledger.bodies
    assert (first["version"], first["cluster"], first["node"]) == (1, "east", "node-7")
    assert first["events"][0]["kind"] == "attempt_started"


def test_events_wait_while_the_ledger_is_away_and_outlive_the_agent_and_the_jobs_folder(
    tmp_path: Path, ledger: Ledger
) -> None:
    ledger.statuses = [503, 429, 500]
    agent = Agent(tmp_path, tmp_path, ledger.url)
    add_event(tmp_path, 0)
    assert agent.tick()[()] == 1
    assert len(ledger.statuses) == 2
    agent.tick(0.4)
    assert len(ledger.statuses) == 2, "it comes back before it is time"
    agent.tick(0.7)
    agent.tick(2.1)
    assert not ledger.statuses
    shutil.rmtree(job_folder(tmp_path, "job"))
    add_event(tmp_path, 1, job="other")
    again = Agent(tmp_path, tmp_path, ledger.url)
    assert again.tick()[()] == 0
    assert ledger.ids == ["job-0", "other-1"]


def test_one_bad_event_does_not_hold_up_the_others(tmp_path: Path, ledger: Ledger) -> None:
    for number in range(9):
        add_event(tmp_path, number)
    ledger.bad_ids = {"job-4"}
    agent = Agent(tmp_path, tmp_path, ledger.url)
    for _ in range(20):
        counts = agent.tick()
    assert counts == {(): 0, ("delivered",): 8, ("refused",): 1, ("dropped",): 0}
    assert ledger.ids == [f"job-{number}" for number in range(9) if number != 4]


def test_the_spool_is_bounded_and_the_newest_events_stay(tmp_path: Path) -> None:
    agent = Agent(tmp_path, tmp_path, "http://127.0.0.1:1/", most=5)
    for number in range(8):
        add_event(tmp_path, number)
    assert agent.tick()[("dropped",)] == 3
    assert [event["id"] for event in agent.spool.pending] == [f"job-{n}" for n in range(3, 8)]


def test_half_a_line_waits_for_its_other_half(tmp_path: Path, ledger: Ledger) -> None:
    agent = Agent(tmp_path, tmp_path, ledger.url)
    add_event(tmp_path, 0)
    path = job_folder(tmp_path, "job") / "events.jsonl"
    line = path.read_bytes()
    path.write_bytes(line[:40])
    assert agent.tick()[()] == 0
    assert not ledger.ids
    with path.open("ab") as file:
        file.write(line[40:])
    agent.tick()
    assert ledger.ids == ["job-0"]


def test_a_job_whose_folder_was_made_anew_is_read_from_its_beginning(
    tmp_path: Path, ledger: Ledger
) -> None:
    agent = Agent(tmp_path, tmp_path, ledger.url)
    add_event(tmp_path, 0)
    agent.tick()
    path = job_folder(tmp_path, "job") / "events.jsonl"
    path.rename(tmp_path / "renamed, so that its inode is not used again")
    for number in (1, 2, 3):
        add_event(tmp_path, number)
    agent.tick()
    assert ledger.ids == ["job-0", "job-1", "job-2", "job-3"]


def test_a_ledger_that_does_not_answer_is_asked_once_a_minute(tmp_path: Path) -> None:
    requests: list[float] = []

    def away(_url: str, _body: bytes) -> int:
        requests.append(agent.now)
        raise OSError("nobody there")

    agent = Agent(tmp_path, tmp_path, "http://ledger/", send=away)
    add_event(tmp_path, 0)
    for _ in range(3600):
        agent.tick(1.0)
    pauses = [later - earlier for earlier, later in itertools.pairwise(requests)]
    assert pauses[0] <= 2
    assert min(pauses[8:]) >= 30
    assert max(pauses) <= 61


def test_one_bad_event_among_a_hundred_is_found_by_halves(tmp_path: Path, ledger: Ledger) -> None:
    for number in range(100):
        add_event(tmp_path, number)
    ledger.bad_ids = {"job-63"}
    agent = Agent(tmp_path, tmp_path, ledger.url)
    ticks = 0
    while agent.tick()[()]:
        ticks += 1
    assert ticks < 30
    assert len(set(ledger.ids)) == 99


def test_a_damaged_spool_or_event_file_does_not_stop_the_delivery(
    tmp_path: Path, ledger: Ledger
) -> None:
    (tmp_path / "spool.json").write_text('{"version":1,"pending":7,"read":[]}')
    add_event(tmp_path, 0)
    with (job_folder(tmp_path, "job") / "events.jsonl").open("ab") as file:
        file.write(b"\xff\x00{]\n[1]\nnull\n")
    add_event(tmp_path, 1)
    Agent(tmp_path, tmp_path, ledger.url).tick()
    assert ledger.ids == ["job-0", "job-1"]


def test_a_running_agent_delivers_and_archives(
    root: Path, options: Options, tmp_path: Path, ledger: Ledger
) -> None:
    LivePage(root).step(1)
    add_event(root, 0)
    archive = tmp_path / "archive"
    delivering = replace(options, ledger=ledger.url, archive=f"file://{archive}")
    with running_agent(delivering):
        within_ten_seconds(lambda: ledger.ids == ["job-0"])
        page = archive / "jobs" / "job" / "0" / "rank-00000.page"
        within_ten_seconds(lambda: page.is_file() and read_page(page).state["steps"] == 1)
    with running_agent(delivering):
        pass
    assert ledger.ids == ["job-0"]


def test_a_reader_of_the_archive_sees_the_complete_old_page_during_a_copy(
    root: Path, tmp_path: Path
) -> None:
    now, page = [0.0], LivePage(root)
    copier = Copier(root, fsspec.filesystem("file"), str(tmp_path), clock=lambda: now[0])
    page.step(1)
    copier.copy()
    [copy] = tmp_path.rglob("*.page")
    before = copy.read_bytes()
    with copy.open("rb") as reading:
        page.step(2)
        now[0] += 301
        copier.copy()
        assert reading.read() == before
    assert copier.counts == {"copied": 2, "failed": 0}
    assert read_page(copy).state["steps"] == 2
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [copy]


def test_a_job_is_noted_as_archived_when_it_has_ended_and_every_file_is_copied(
    root: Path,
) -> None:
    files = fsspec.filesystem("memory")
    copier = Copier(root, files, "/noted")
    page = LivePage(root)
    page.step(1)
    add_event(root, 0)
    copier.copy()
    assert archived_jobs(root) == frozenset()
    append_event(root / "jobs" / "job", Event(kind="job_finished", job_id="job", attempt=0))
    copier.copy()
    assert archived_jobs(root) == frozenset({"job"})


def test_the_archive_copies_ended_pages_once_and_running_ones_every_five_minutes(
    root: Path,
) -> None:
    files = fsspec.filesystem("memory")
    now = [0.0]
    copier = Copier(root, files, "/archive", clock=lambda: now[0])
    running, ended = LivePage(root), LivePage(root, rank=1)
    for page in (running, ended):
        page.step(1)
    ended.phase("done")
    add_event(root, 0)
    copier.copy()
    assert copier.counts == {"copied": 3, "failed": 0}
    running.step(2)
    copier.copy()
    assert copier.counts["copied"] == 3
    now[0] += 301
    copier.copy()
    assert copier.counts["copied"] == 4
    body = files.cat_file("/archive/jobs/job/0/rank-00000.page")
    assert body == running.path.read_bytes()

    class Full:
        protocol = "file"

        def makedirs(self, *_: object, **__: object) -> None:
            raise OSError(28, "no space")

    full = Copier(root, Full(), "/archive", clock=lambda: now[0])
    full.copy()
    full.copy()
    assert full.counts == {"copied": 0, "failed": 6}
    assert health.ARCHIVED_FILES.labels[0].values == ("copied", "failed")
