"""The rank pages are read once a tick however many collectors need them, and fail alone."""

import threading
from collections import Counter
from pathlib import Path

import pytest

from lockstep_agent.collector import Collector, Guard
from lockstep_agent.collectors.gpu.allocation import GpuAllocation
from lockstep_agent.collectors.jobs.bus import Bus
from lockstep_agent.collectors.jobs.hangs import Hangs
from lockstep_agent.collectors.jobs.job_host import JobHost
from lockstep_agent.collectors.jobs.ranks import Ranks
from lockstep_agent.jobs.page_store import PageStore
from lockstep_outcomes.progress.hangs import HangTimeouts
from lockstep_records.files.jobs import list_jobs
from lockstep_records.page.reader import Page, PageError, PageReader

from ..live_page import LivePage

PROC = Path("/proc")
TICK_SECONDS = 1.0


class Clock:
    """A clock that a test sets forward."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(name="reads")
def _reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each page was read, by its name, and the list of jobs, as ``jobs``."""
    reads: Counter[str] = Counter()
    read = PageReader.read

    def counted_read(reader: PageReader) -> Page:
        reads[reader._path.name] += 1
        return read(reader)

    def counted_list(root: Path) -> list[Path]:
        reads["jobs"] += 1
        return list_jobs(root)

    monkeypatch.setattr(PageReader, "read", counted_read)
    monkeypatch.setattr("lockstep_agent.jobs.job_snapshot.list_jobs", counted_list)
    return reads


def users(pages: PageStore, folder: Path) -> list[Collector]:
    """The five collectors that need rank pages."""
    return [
        Ranks(pages, "node-7", linger_seconds=60.0),
        Hangs(pages, "node-7", PROC, HangTimeouts(step_seconds=5.0)),
        Bus(pages, "node-7"),
        GpuAllocation(list, pages, procfs=PROC, kubelet=folder / "none"),
        JobHost(str(folder), str(PROC), pages),
    ]


def test_five_collectors_read_a_page_once(root: Path, tmp_path: Path, reads: Counter[str]) -> None:
    for rank in range(3):
        LivePage(root, rank=rank, gpu_uuid="GPU-a").step(1)
    clock = Clock()
    pages = PageStore(root, PROC, TICK_SECONDS / 2, clock)
    collectors = users(pages, tmp_path)
    for tick in range(1, 4):
        for collector in collectors:
            list(collector.collect())
            clock.now += 0.01
        assert reads == {"jobs": tick, **{f"rank-0000{rank}.page": tick for rank in range(3)}}
        clock.now = tick * TICK_SECONDS


def test_an_unreadable_page_costs_itself_in_every_collector(root: Path, tmp_path: Path) -> None:
    LivePage(root, rank=0).step(1)
    LivePage(root, rank=1).truncate()
    pages = PageStore(root, PROC)
    assert not any(Guard(collector).run().failed for collector in users(pages, tmp_path))
    [job] = pages.jobs()
    assert [page.identity["rank"] for page in job.newest_pages()] == [0]
    for _ in range(2):
        with pytest.raises(PageError, match="rank-00001") as raised:
            job.read(job.paths[1])
        assert raised.value.reason == "truncated"


def test_an_agent_that_is_older_than_a_page_says_so_and_what_to_do(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    page = LivePage(root)
    page.replace_identity(version=99)
    list(Ranks(PageStore(root, PROC), "n1", 60.0).collect())
    [line] = [each.getMessage() for each in caplog.records if str(page.path) in each.getMessage()]
    assert "cannot be read: version; this agent is older than it: upgrade the agent" in line


def test_a_page_that_hangs_stalls_those_who_ask_for_it_and_nobody_else(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("answers", "hangs"):
        LivePage(root, job_id=name).step(1)
    goes_on, read = threading.Event(), PageReader.read

    def slow_read(reader: PageReader) -> Page:
        if "hangs" in reader._path.parts:
            goes_on.wait(30)
        return read(reader)

    monkeypatch.setattr(PageReader, "read", slow_read)
    pages = PageStore(root, PROC, max_age_seconds=60.0)

    def ask_for_second() -> None:
        pages.jobs()[1].newest_pages()

    stuck = threading.Thread(target=ask_for_second, daemon=True)
    stuck.start()
    answers, hangs = pages.jobs()
    assert (answers.job_id, hangs.job_id) == ("answers", "hangs")
    assert len(answers.newest_pages()) == 1
    assert stuck.is_alive()
    goes_on.set()
    stuck.join(30)
    assert len(hangs.newest_pages()) == 1
