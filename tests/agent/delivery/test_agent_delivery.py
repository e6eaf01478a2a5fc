"""Events of jobs on their way to the ledger, and pages on theirs to the archive."""

import itertools
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from servers import FakeLedger, wait_until

from lockstep_agent.delivery.sender import Delivery
from lockstep_agent.options import Options
from lockstep_catalogue import agent as agent_metrics
from lockstep_records.delivery.duty import DeliveryDuty
from lockstep_records.delivery.exchange import Answer
from lockstep_records.delivery.sender import LedgerAddress, Post, post
from lockstep_records.delivery.spool import SPOOL_BYTES, EventSpool
from lockstep_records.events.event import FILE_NAME, Event, append_event, line_of
from lockstep_records.files.jobs import job_folder
from lockstep_records.page.reader import read_page

from ..live_page import LivePage
from ..running_agent import running_agent


def add_event(root: Path, number: int, job: str = "job") -> None:
    event = Event(kind="attempt_started", job_id=job, attempt=number, id=f"{job}-{number}")
    append_event(job_folder(root, job), event)


class Agent:
    """The delivery of an agent, with a clock that a test sets forward."""

    def __init__(
        self, root: Path, state: Path, url: str, most: int = SPOOL_BYTES, send: Post = post
    ) -> None:
        self.now = 0.0
        self.spool = EventSpool(root, state / "spool.sqlite", most)
        self.delivery = Delivery(
            self.spool,
            LedgerAddress(url=url),
            ("east", "node-7"),
            duty=DeliveryDuty(root, is_agent=True),
            send=send,
            clock=lambda: self.now,
        )

    def tick(self, seconds: float = 0.0) -> dict[tuple[str, ...], float]:
        self.now += seconds
        return {
            reading.labels: reading.value
            for reading in self.delivery.collect()
            if reading.metric is not agent_metrics.EVENTS_SPOOL_RATIO
        }


def test_events_arrive_once_in_order_with_their_origin(tmp_path: Path, ledger: FakeLedger) -> None:
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
    tmp_path: Path, ledger: FakeLedger
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


def test_half_a_line_waits_for_its_other_half(tmp_path: Path, ledger: FakeLedger) -> None:
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
    tmp_path: Path, ledger: FakeLedger
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

    def away(_address: LedgerAddress, _body: bytes) -> Answer:
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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
def test_a_tenant_of_fifty_thousand_events_a_minute_delays_no_other_by_more_than_a_tick(
    tmp_path: Path,
) -> None:
    delivered: list[str] = []

    def take(_address: LedgerAddress, body: bytes) -> Answer:
        delivered.extend(event["id"] for event in json.loads(body)["events"])
        return Answer(200)

    agent = Agent(tmp_path, tmp_path, "http://ledger/", most=1 << 20, send=take)
    flood = job_folder(tmp_path, "flood")
    add_event(tmp_path, 0, "flood")
    event = line_of(Event(kind="hang", job_id="flood", attempt=0, id="NUMBER"))
    for second in range(20):
        numbers = (f"{second}-{number}" for number in range(50_000 // 60))
        with (flood / FILE_NAME).open("a") as file:
            file.writelines(event.replace("NUMBER", number) + "\n" for number in numbers)
        add_event(tmp_path, second, "other")
        for uid, job in ((64_001, "flood"), (64_002, "other")):
            os.chown(job_folder(tmp_path, job), uid, uid)
            os.chown(job_folder(tmp_path, job) / FILE_NAME, uid, uid)
        ticked = agent.tick(1.0)
        assert f"other-{second}" in delivered
    assert ticked["dropped",] > 0
    assert agent.spool.fill_ratio <= 1


@pytest.mark.parametrize("num_bad", [0, 1, 99, 100])
def test_what_a_ledger_refuses_of_a_hundred_events_holds_up_nothing(
    tmp_path: Path, ledger: FakeLedger, num_bad: int
) -> None:
    for number in range(100):
        add_event(tmp_path, number)
    ledger.bad_ids = {f"job-{number}" for number in range(num_bad)}
    agent, counts = Agent(tmp_path, tmp_path, ledger.url), (100 - num_bad, num_bad)
    taken = {(): 0, ("delivered",): counts[0], ("refused",): counts[1], ("dropped",): 0}
    assert agent.tick() == taken
    assert ledger.ids == [f"job-{number}" for number in range(num_bad, 100)]


def test_a_damaged_spool_or_event_file_does_not_stop_the_delivery(
    tmp_path: Path, ledger: FakeLedger
) -> None:
    (tmp_path / "spool.sqlite").write_bytes(b"no database at all, by far" * 99)
    add_event(tmp_path, 0)
    with (job_folder(tmp_path, "job") / "events.jsonl").open("ab") as file:
        file.write(b"\xff\x00{]\n[1]\nnull\n")
    add_event(tmp_path, 1)
    Agent(tmp_path, tmp_path, ledger.url).tick()
    assert ledger.ids == ["job-0", "job-1"]


@pytest.mark.server
def test_a_running_agent_delivers_and_archives(
    root: Path, options: Options, tmp_path: Path, ledger: FakeLedger
) -> None:
    LivePage(root).step(1)
    add_event(root, 0)
    archive = tmp_path / "archive"
    delivering = replace(options, ledger=ledger.url, archive=f"file://{archive}")
    with running_agent(delivering):
        # After it come the incidents of the kernel log that affect the job.
        wait_until(lambda: ledger.ids[:1] == ["job-0"])
        page = archive / "jobs" / "job" / "0" / "rank-00000.page"
        wait_until(lambda: page.is_file() and read_page(page).state["steps"] == 1)
    with running_agent(delivering):
        pass
    assert ledger.ids[:1] == ["job-0"]
