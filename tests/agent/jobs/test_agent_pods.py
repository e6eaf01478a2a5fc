"""Pages in the volumes of pods: private to each, of one job or of several, named by their pods."""

import itertools
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep_agent.collector import AnyReading, Reading
from lockstep_agent.collectors.jobs.ranks import Ranks
from lockstep_agent.delivery.archive import Copier
from lockstep_agent.jobs.job_snapshot import MAX_PAGES
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.jobs.unreported import UnreportedJobs
from lockstep_agent.sources.pods import Pod, PodNames
from lockstep_catalogue import training
from lockstep_records.delivery.spool import EventSpool
from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import list_jobs, page_path, plain_roots
from lockstep_records.page.layout import SLOT
from lockstep_records.page.writer import PageWriter, RankIdentity

UIDS = [f"{n}b5f6a30-6a3f-4f0e-9d65-2f1f6d6f{n * 4}" for n in "0123"]


class Kubelet:
    """Folders of a kubelet: a volume and a folder of logs for each pod."""

    def __init__(self, folder: Path) -> None:
        self.logs, self._pods = folder / "log", folder / "kubelet" / "pods"
        self.pattern = self._pods / "*" / "volumes" / "kubernetes.io~empty-dir" / "lockstep"

    def start(self, uid: str, namespace: str = "vision", name: str = "llm-0") -> Path:
        volume = self._pods / uid / "volumes" / "kubernetes.io~empty-dir" / "lockstep"
        volume.mkdir(parents=True)
        (self.logs / f"{namespace}_{name}_{uid}" / "trainer").mkdir(parents=True)
        return volume

    def end(self, uid: str) -> None:
        shutil.rmtree(self._pods / uid)
        [folder] = self.logs.glob(f"*_{uid}")
        shutil.rmtree(folder)


@pytest.fixture(name="kubelet")
def _kubelet(memory: Path) -> Kubelet:
    return Kubelet(memory)


@pytest.fixture(name="store")
def _store(kubelet: Kubelet, memory: Path) -> PageStore:
    roots = (memory / "run", kubelet.pattern)
    clock = itertools.count(0.0, 100.0).__next__  # a slow listing is not put off
    return PageStore(roots, Path("/proc"), clock=clock, pods=PodNames(kubelet.logs))


def write_page(volume: Path, job_id: str, rank: int, attempt: int = 0) -> PageWriter:
    path = page_path(volume, job_id, attempt, rank)
    identity = RankIdentity(job_id=job_id, rank=rank, world_size=4, attempt=attempt)
    return PageWriter(path, identity, rows=4)


def infos(store: PageStore) -> list[dict[str, str]]:
    readings: Iterator[AnyReading] = Ranks(store, "n1", 60.0).collect()
    found = [each for each in readings if each.metric is training.RANK_INFO]
    return [dict(zip(each.metric.label_names, each.labels, strict=True)) for each in found]


def test_two_pods_of_a_job_on_one_node_are_one_job_with_the_names_of_both(
    kubelet: Kubelet, store: PageStore
) -> None:
    for uid, name, rank in ((UIDS[0], "llm-0", 0), (UIDS[1], "llm-1", 2)):
        volume = kubelet.start(uid, name=name)
        write_page(volume, "vision.llm", rank).close()
        write_page(volume, "vision.llm", rank + 1).close()
    [job] = store.jobs()
    assert [page.identity["rank"] for page in job.newest_pages()] == [0, 1, 2, 3]
    named = [(i["rank"], i["namespace"], i["pod"], i["container"]) for i in infos(store)]
    assert named == [(str(rank), "vision", f"llm-{rank // 2}", "trainer") for rank in range(4)]
    readings = Ranks(store, "n1", 60.0).collect()
    series = [(each.metric.name, each.labels) for each in readings]
    assert len(series) == len(set(series))


def test_an_id_that_another_namespace_has_is_left_out_and_said(
    kubelet: Kubelet, store: PageStore, caplog: pytest.LogCaptureFixture
) -> None:
    write_page(kubelet.start(UIDS[1], "vision"), "llm", 0).close()
    assert [i["namespace"] for i in infos(store)] == ["vision"]
    # Its uid sorts first, and it still does not take the id over.
    write_page(kubelet.start(UIDS[0], "attacker"), "llm", 1).close()
    assert [i["namespace"] for i in infos(store)] == ["vision"]
    assert "another user or namespace has this job id" in caplog.text
    kubelet.end(UIDS[1])
    assert [i["namespace"] for i in infos(store)] == ["attacker"]


def test_anothers_id_in_the_same_namespace_is_left_out(kubelet: Kubelet, store: PageStore) -> None:
    if os.geteuid():
        pytest.skip("only root gives folders away")
    write_page(kubelet.start(UIDS[0]), "llm", 0).close()
    volume = kubelet.start(UIDS[1])
    write_page(volume, "llm", 1).close()
    os.chown(volume / "jobs" / "llm", 65534, 65534)
    [job] = store.jobs()
    assert len(job.paths) == 1


def test_a_volume_that_leads_into_another_pods_volume_is_not_followed(
    kubelet: Kubelet, store: PageStore
) -> None:
    victim = kubelet.start(UIDS[1])
    write_page(victim, "llm", 0).close()
    (kubelet.start(UIDS[0], "attacker") / "jobs").symlink_to(victim / "jobs")
    assert [i["namespace"] for i in infos(store)] == ["vision"]


def test_pods_come_and_go_and_a_jobs_totals_never_fall(kubelet: Kubelet, store: PageStore) -> None:
    collector = Ranks(store, "n1", 60.0)

    def steps() -> float:
        readings = [each for each in collector.collect() if each.metric is training.STEPS]
        return sum(each.value for each in readings if isinstance(each, Reading))

    assert steps() == 0
    for rank, uid in enumerate(UIDS[:2]):
        page = write_page(kubelet.start(uid), "llm", rank)
        page.words[SLOT.word("steps")] = 3
        page.commit(time.monotonic_ns())
        page.close()
    before = steps()
    assert before == 6
    kubelet.end(UIDS[0])
    assert steps() >= before
    kubelet.end(UIDS[1])
    assert infos(store) == []


def test_a_pod_that_floods_its_volume_cuts_no_other_pod_of_the_same_user(
    kubelet: Kubelet, store: PageStore
) -> None:
    flood = kubelet.start(UIDS[0], "attacker") / "jobs" / "flood" / "0"
    flood.mkdir(parents=True)
    for rank in range(MAX_PAGES + 50):
        (flood / f"rank-{rank:05d}.page").touch()
    write_page(kubelet.start(UIDS[1]), "llm", 0).close()
    by_id = {job.job_id: job for job in store.jobs()}
    assert len(by_id["flood"].paths) == MAX_PAGES
    assert len(by_id["llm"].paths) == 1


@pytest.mark.parametrize("name", ["", "no-uid", "vision_llm_other-uid"])
def test_a_pod_without_a_folder_of_logs_has_no_names(name: str, tmp_path: Path) -> None:
    if name:
        (tmp_path / name).mkdir()
    names = PodNames(tmp_path)
    assert names.pod_of(Path(f"/var/lib/kubelet/pods/{UIDS[0]}/volumes/x/lockstep")) == Pod()
    assert names.pod_of(Path("/run/lockstep")) == Pod()


def test_events_of_every_pod_are_spooled_and_an_unlaunched_pod_is_reported(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    for uid, node in zip(UIDS[:2], ("p0", "p1"), strict=True):
        folder = kubelet.start(uid) / "jobs" / "llm"
        (folder / "0").mkdir(parents=True)
        append_event(
            folder, Event(kind="job_started", job_id="llm", attempt=0, fields={"user": node})
        )
    spool = EventSpool((kubelet.pattern,), tmp_path / "spool.sqlite")
    spool.refresh()
    assert spool.num_pending == 2
    spool.refresh()
    assert spool.num_pending == 2
    write_page(kubelet.start(UIDS[2]), "plain", 0)
    kinds = [event.kind for event in UnreportedJobs((kubelet.pattern,)).poll()]
    assert "job_started" in kinds


def test_the_archive_takes_pages_of_all_pods_into_one_job(kubelet: Kubelet, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    for rank, uid in enumerate(UIDS[:2]):
        write_page(kubelet.start(uid), "llm", rank).close()
    Copier((kubelet.pattern,), fsspec.filesystem("file"), str(tmp_path / "archive")).copy()
    names = sorted(path.name for path in (tmp_path / "archive" / "jobs" / "llm" / "0").iterdir())
    assert names == ["rank-00000.page", "rank-00001.page"]


def test_a_pattern_is_no_folder_of_this_machine(kubelet: Kubelet, memory: Path) -> None:
    assert plain_roots((memory, kubelet.pattern)) == [memory]
    assert list_jobs((memory / "never", kubelet.pattern)) == []
