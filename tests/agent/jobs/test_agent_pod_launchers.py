"""Two pods of one job on a node: the agent numbers their launchers, and the numbers stay."""

import json
from pathlib import Path

import pytest

from lockstep_agent.jobs.unreported import UnreportedJobs
from lockstep_records.delivery.spool import EventSpool
from lockstep_records.events.event import FILE_NAME, Event, append_event

from .test_agent_pods import UIDS, Kubelet, write_page


@pytest.fixture(name="kubelet")
def _kubelet(memory: Path) -> Kubelet:
    return Kubelet(memory)


def begin(kubelet: Kubelet, uid: str, job_id: str = "llm") -> Path:
    folder = kubelet.start(uid, name=f"{job_id}-{uid[0]}") / "jobs" / job_id
    (folder / "0").mkdir(parents=True)
    event = Event(kind="job_started", job_id=job_id, attempt=0, id=f"start-{uid[0]}")
    append_event(folder, event)
    return folder


def launchers(spool: EventSpool) -> dict[str, str | None]:
    spool.refresh()
    documents = [json.loads(event.text) for event in spool.next_batch(100, 1 << 30)]
    return {each["id"]: each.get("launcher") for each in documents}


def test_the_second_pod_of_a_job_is_its_second_launcher(kubelet: Kubelet, tmp_path: Path) -> None:
    spool = EventSpool((kubelet.pattern,), tmp_path / "spool.sqlite")
    first = begin(kubelet, UIDS[0])
    assert launchers(spool) == {"start-0": None}
    begin(kubelet, UIDS[1])
    begin(kubelet, UIDS[2], "other")
    append_event(first, Event(kind="job_finished", job_id="llm", attempt=0, id="end-0",
                              fields={"outcome": "succeeded"}))  # fmt: skip
    assert launchers(spool) == {"start-0": None, "start-1": "2", "start-2": None, "end-0": None}


def test_a_number_stays_over_a_restart_of_the_agent(kubelet: Kubelet, tmp_path: Path) -> None:
    for uid in (UIDS[2], UIDS[1]):
        begin(kubelet, uid)
        spool = EventSpool((kubelet.pattern,), tmp_path / "spool.sqlite")
        assert launchers(spool)["start-2"] is None
        spool.close()
    begin(kubelet, UIDS[0])
    spool = EventSpool((kubelet.pattern,), tmp_path / "spool.sqlite")
    assert launchers(spool) == {"start-2": None, "start-1": "2", "start-0": "3"}


def test_a_pod_in_the_place_of_a_gone_one_has_its_number(kubelet: Kubelet, tmp_path: Path) -> None:
    spool = EventSpool((kubelet.pattern,), tmp_path / "spool.sqlite")
    begin(kubelet, UIDS[0])
    begin(kubelet, UIDS[1])
    launchers(spool)
    kubelet.end(UIDS[0])
    launchers(spool)
    begin(kubelet, UIDS[2])
    assert launchers(spool) == {"start-0": None, "start-1": "2", "start-2": None}


def test_a_file_cannot_name_its_launcher(kubelet: Kubelet, tmp_path: Path) -> None:
    folder = begin(kubelet, UIDS[0])
    document = {"id": "forged", "kind": "job_finished", "job_id": "llm", "attempt": 0,
                "time": 1.0, "launcher": "2", "fields": {"outcome": "failed"}}  # fmt: skip
    with (folder / FILE_NAME).open("a") as file:
        file.write(json.dumps(document) + "\n")
    spool = EventSpool((kubelet.pattern,), tmp_path / "spool.sqlite")
    assert launchers(spool) == {"start-0": None, "forged": None}


def test_pods_without_a_launcher_have_numbers_and_a_share_of_the_gpus(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    pages = [write_page(kubelet.start(uid), "plain", rank) for rank, uid in enumerate(UIDS[:2])]
    spool = EventSpool((kubelet.pattern,), tmp_path / "spool.sqlite")
    watch = UnreportedJobs(
        (kubelet.pattern,), num_gpus_of=lambda _: 8, launcher_of=spool.launcher_of
    )
    events = watch.poll()
    spool.add(events)
    for page in pages:
        page.close()
    goodput = [event for event in events if event.kind == "goodput"]
    assert [(each.launcher, each.fields["num_gpus"]) for each in goodput] == [(None, 4), ("2", 4)]
    kinds = [(json.loads(e.text)["kind"], json.loads(e.text).get("launcher"))
             for e in spool.next_batch(9, 1 << 30)]  # fmt: skip
    assert kinds == [
        (kind, launcher)
        for launcher in (None, "2")
        for kind in ("job_started", "attempt_started", "goodput")
    ]
