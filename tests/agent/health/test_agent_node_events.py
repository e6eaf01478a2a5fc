"""Incidents of a node, as events of the jobs that they affect."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep_agent.collectors.gpu.allocation import GpuInUse
from lockstep_agent.delivery.node_events import NodeEvents
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.recent_events import RecentEvents
from lockstep_outcomes.classify import classify
from lockstep_outcomes.evidence import evidence_of
from lockstep_records.events.event import Event, append_event, read_events
from lockstep_records.files.jobs import job_folder
from lockstep_records.kernel.incidents import Incidents
from lockstep_records.kernel.lines import Message
from lockstep_records.kernel.patterns import match_message

from ..live_page import LivePage

GPUS = (
    GpuInUse(index=0, uuid="GPU-a", address="0000:3b:00.0"),
    GpuInUse(index=1, uuid="GPU-b", address="0000:5e:00.0"),
)
DEAD_PID = 2**22 + 1  # no kernel gives one as high
LOST = "NVRM: Xid (PCI:0000:5e:00): 79, pid=1234, GPU has fallen off the bus."


class Node:
    """A node with a job of two ranks on two GPUs, and a kernel log that a test writes."""

    def __init__(self, root: Path) -> None:
        self.root, self.gpus = root, list(GPUS)
        self.users = {(gpu.uuid, os.getuid()) for gpu in GPUS}
        self.pages = [LivePage(root, rank=r, gpu_uuid=GPUS[r].uuid) for r in range(2)]
        self.incidents, self.recent = Incidents(), RecentEvents()
        self.num_appeared = 0
        self.events = self.agent()

    def agent(self) -> NodeEvents:
        return NodeEvents(
            self.recent,
            PageStore(self.root, Path("/proc")),
            lambda: self.gpus,
            "n1",
            has_used=lambda uuid, owner, _: (uuid, owner) in self.users,
            rank_appeared=self.count_appearance,
        )

    def count_appearance(self) -> None:
        self.num_appeared += 1

    def launcher_writes(self, kind: str = "attempt_started", **fields: Any) -> None:
        append_event(job_folder(self.root, "job"), Event(kind=kind, job_id="job", attempt=0,
                                                         fields=fields))  # fmt: skip

    def log(self, text: str, ago_seconds: float = 0.0) -> None:
        wall = time.time() - ago_seconds
        finding = match_message("kernel", text)
        assert finding is not None
        self.incidents.add("kernel", finding, Message(seconds=wall, wall_seconds=wall, text=text))
        self.recent.replace(self.incidents.recent)
        list(self.events.collect())

    def written(self) -> list[dict[str, Any]]:
        events = read_events(job_folder(self.root, "job"))
        return [event.fields for event in events if event.kind == "node_event"]


@pytest.fixture(name="node")
def _node(root: Path) -> Node:
    node = Node(root)
    node.launcher_writes()
    return node


def test_an_xid_is_an_event_of_the_rank_on_that_gpu(node: Node) -> None:
    node.log(LOST)
    [fields] = node.written()
    assert fields["sign"] == "xid"
    assert fields["detail"].startswith("Xid79 ")
    assert fields["ranks"] == [1]


def test_a_rank_whose_page_names_no_gpu_is_where_the_driver_last_listed_it(node: Node) -> None:
    LivePage(node.root, rank=2)
    node.gpus[1] = replace(GPUS[1], pids=(os.getpid(),))
    list(node.events.collect())
    node.gpus = node.gpus[:1]
    node.log(LOST)
    assert node.written()[0]["ranks"] == [1, 2]


@pytest.mark.parametrize(("ended_seconds", "ranks"), [(30, []), (2, [[1]])])
def test_a_sign_is_of_a_rank_that_ended_a_moment_ago_and_of_none_that_had_ended_before(
    node: Node, ended_seconds: float, ranks: list[list[int]]
) -> None:
    node.pages[1].phase("failed", ago_seconds=ended_seconds)
    node.pages[1].replace_identity(pid=DEAD_PID)
    node.log(LOST)
    assert [fields["ranks"] for fields in node.written()] == ranks


def test_the_launcher_judges_an_end_by_incidents_of_the_node(node: Node) -> None:
    node.log(LOST)
    node.launcher_writes("rank_ended", rank=0, pid=1, exit_code=-6, first=True)
    node.launcher_writes("rank_ended", rank=1, pid=2, exit_code=-6)
    judged = classify(evidence_of(job_folder(node.root, "job"), 0))
    assert (judged.outcome, judged.failure_class, judged.cause) == ("failed", "infra", "xid")
    assert judged.cause_ranks == (1,)
    assert judged.cause_node == "n1"


def test_what_a_job_has_survived_for_an_hour_did_not_end_it(node: Node) -> None:
    event = Event(
        kind="node_event", job_id="job", attempt=0, node="n1", time=time.time() - 3600,
        fields={"sign": "xid", "detail": "Xid94 contained memory error", "ranks": [1]},
    )  # fmt: skip
    append_event(job_folder(node.root, "job"), event)
    node.launcher_writes("rank_ended", rank=1, pid=2, exit_code=1, first=True)
    assert classify(evidence_of(job_folder(node.root, "job"), 0)).cause == "exit"


def test_an_incident_is_written_once_also_by_an_agent_that_starts_again(node: Node) -> None:
    node.log(LOST)
    list(node.events.collect())
    node.events = node.agent()
    list(node.events.collect())
    assert len(node.written()) == 1


def test_a_gpu_that_the_driver_lost_is_still_known(node: Node) -> None:
    list(node.events.collect())
    node.gpus = node.gpus[:1]
    node.log(LOST)
    assert node.written()[0]["ranks"] == [1]


def test_a_killed_process_is_an_event_of_its_rank_alone(node: Node) -> None:
    other = "Out of memory: Killed process 4 (editor) total-vm:1kB"
    node.log(other)
    assert node.written() == []
    node.log(f"Out of memory: Killed process {os.getpid()} (python) total-vm:1kB")
    [fields] = node.written()
    assert (fields["sign"], fields["ranks"]) == ("host_oom", [0, 1])  # both pages are of this test


def test_a_job_whose_user_was_not_on_the_gpu_has_no_event_of_it(node: Node) -> None:
    node.users.clear()
    node.log(LOST)
    assert node.written() == []


@pytest.mark.parametrize(("user", "signs"), [(os.getuid(), ["host_oom"]), (os.getuid() + 1, [])])
def test_a_killed_process_is_an_event_of_its_user_whatever_pid_a_page_names(
    node: Node, user: int, signs: list[str]
) -> None:
    killed = f"Out of memory: Killed process {os.getpid()} (python) total-vm:1kB"
    node.log(f"{killed}, UID:{user} pgtables:1kB")
    assert [fields["sign"] for fields in node.written()] == signs


def test_what_was_before_the_job_and_what_ends_none_is_no_event(node: Node) -> None:
    node.log(LOST, ago_seconds=3600)
    node.log("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0 (channel:0)")
    assert node.written() == []


def test_a_job_without_a_file_of_events_has_them_delivered_all_the_same(root: Path) -> None:
    node = Node(root)
    node.log(LOST)
    assert not (job_folder(root, "job") / "events.jsonl").exists()
    [event] = node.events.poll()
    assert (event.kind, event.node, event.fields["ranks"]) == ("node_event", "n1", [1])
    assert node.events.poll() == []
