"""Jobs without a line of ours, seen through a status socket that processes of this test play."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from lockstep_agent.collectors.jobs.hangs import Hangs
from lockstep_agent.collectors.jobs.watched import Watched
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.jobs.ras_watch import RasWatch
from lockstep_agent.jobs.watched_jobs import WatchedJobs
from lockstep_agent.sources.nccl_processes import Listener, NcclProcesses, find_endpoint
from lockstep_agent.sources.pods import PodNames
from lockstep_catalogue import training
from lockstep_outcomes.progress.hangs import HangTimeouts
from lockstep_reports.jobs_command import jobs

from ..live_page import LivePage
from ..values import training_values
from .ras_ranks import RasJob, nccl_library
from .test_agent_namespaces import may_unshare

MOVES, BEHIND = "A: 5 5 5 5 5 5 5 5", "A: 7 7 7 6 7 7 7 7"
POLL_SECONDS = 30.0


@pytest.fixture
def mesh() -> Iterator[RasJob]:
    with RasJob(nccl_library(), SLURM_JOB_ID="4242") as ranks:
        yield ranks


class OwnProcesses(NcclProcesses):
    """Those that this test has started: other programs of the machine may use NCCL too."""

    def _pids(self) -> Iterator[int]:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
        return map(int, children.split())


class Watch:
    """The agent's watch and its two collectors, with a clock that goes on by a poll."""

    def __init__(
        self, root: Path, mesh: RasJob | None = None, settled_seconds: float = 0.0
    ) -> None:
        self.now, self.mesh = time.time(), mesh
        self.pages = PageStore(root, Path("/proc"), cluster="east")
        self.watch = RasWatch(
            self.pages,
            OwnProcesses(settled_seconds=settled_seconds),
            PodNames(root),
            120.0,
            wall_clock=lambda: self.now,
        )
        self.jobs = WatchedJobs((self.watch,), "east")
        self.hangs = Hangs(self.pages, "n7", Path("/proc"), HangTimeouts(), watched=self.jobs)

    def polls(self, *lines: str) -> dict[str, dict[tuple[str, ...], float]]:
        for line in lines:
            if self.mesh:
                self.mesh.says(line)
            self.watch.run_once()
            self.now += POLL_SECONDS
        ras = Watched(self.watch, self.jobs, "n7")
        return training_values(ras.readings(), self.hangs.collect())


JOB = ("east", "4242", "n7")


def test_a_job_without_a_line_has_ranks_and_a_hang_that_names_rank_and_node(
    root: Path, mesh: RasJob
) -> None:
    watch = Watch(root, mesh)
    found = watch.polls(MOVES, "A: 6 6 6 6 6 6 6 6")
    assert found[training.RANKS.name][*JOB, "training"] == 8
    assert {labels[2] for labels in found[training.RANK_INFO.name]} == set(map(str, range(8)))
    assert found[training.JOB_SEEN.name] == {(*JOB, "ras", "moving"): 1}
    assert found[training.HUNG_RANKS.name] == {JOB: 0}
    found = watch.polls(*[BEHIND] * 6)
    assert found[training.HANG_MISSING.name] == {
        (*JOB, "3", "unknown", "behind_in_launches_by_ras", f"{ord('A'):016x}"): 1
    }
    [(first, seconds)] = found[training.HANG_FIRST.name].items()
    assert (first, seconds) == ((*JOB, "3", "unknown"), 150)
    assert "rank 3" in watch.hangs.recent.json.decode()
    assert watch.polls("A: 8 8 8 8 8 8 8 8", "A: 9 9 9 9 9 9 9 9")[training.HUNG_RANKS.name] == {
        JOB: 0
    }
    assert len(mesh.asked_seconds) == 10


def test_a_stop_that_a_job_came_out_of_has_to_last_twice_as_long(root: Path, mesh: RasJob) -> None:
    watch = Watch(root, mesh)
    watch.polls(MOVES, *[BEHIND] * 3, "A: 8 8 8 8 8 8 8 8")
    later = BEHIND.replace("7", "9").replace("6", "8")
    assert training.HANG_FIRST.name not in watch.polls(*[later] * 6)
    assert training.HANG_FIRST.name in watch.polls(later)


def test_the_list_of_jobs_has_it_and_says_by_what_it_is_seen(root: Path, mesh: RasJob) -> None:
    watch = Watch(root, mesh)
    watch.polls(MOVES, *[BEHIND] * 6)
    Watched(watch.watch, watch.jobs, "n7", root).write()
    listed = CliRunner().invoke(jobs, ["--json", "--dir", str(root)])
    [job] = json.loads(listed.output)
    assert (job["job_id"], job["ranks"], job["seen_by"]) == ("4242", 8, "ras")
    assert job["headline"].startswith("by ras: The job hangs: rank 3 (pid")


_IN_A_NETWORK = ("unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$0" "$@"')


@pytest.mark.skipif(not may_unshare(), reason="PID namespaces take privileges")
def test_a_job_in_network_namespaces_of_its_own_is_asked_there(root: Path) -> None:
    with RasJob(nccl_library(), inside=_IN_A_NETWORK, SLURM_JOB_ID="4242") as mesh:
        found = Watch(root, mesh).polls(MOVES, "A: 6 6 6 6 6 6 6 6")
        assert found[training.JOB_SEEN.name] == {(*JOB, "ras", "moving"): 1}


LISTENERS = {
    "own": ([("127.0.0.1", 1)], "127.0.0.1"),
    "own, on the other family": ([("::1", 1)], "::1"),
    "own, on every address": ([("::", 1)], "::1"),
    "several processes of the user": ([("::1", 1), ("::1", 1)], "::1"),
    "a stranger on each family": ([("::1", 2), ("127.0.0.1", 1)], "127.0.0.1"),
    "a stranger": ([("127.0.0.1", 2)], None),
    "a stranger nearer than the user": ([("::", 1), ("::1", 2)], None),
    "a stranger behind every address": ([("127.0.0.1", 1), ("::", 2)], None),
    "nobody": ([], None),
}


@pytest.mark.parametrize("name", LISTENERS)
def test_nobody_is_asked_where_a_stranger_could_answer(name: str) -> None:
    rows, expected = LISTENERS[name]
    listeners = [Listener(address, 28028, user) for address, user in rows]
    endpoint = find_endpoint(7, 1, 28028, [*listeners, Listener("127.0.0.1", 1, 2)])
    assert (endpoint and endpoint.address) == expected


@pytest.mark.parametrize("library", ["libnccl.so.2.27.7", "libnccl.so.2", "libother.so.2.28.9"])
def test_nobody_is_asked_whose_version_is_old_or_unknown(root: Path, library: str) -> None:
    with RasJob(nccl_library(library)) as mesh:
        assert Watch(root, mesh).polls(MOVES, MOVES) == {}
        assert len(mesh.asked_seconds) == 0


def test_a_version_is_found_in_a_library_without_one_in_its_name(root: Path) -> None:
    library = nccl_library("libnccl.so.2", "2.29.2+cuda13.0")
    with RasJob(library, TORCHELASTIC_RUN_ID="run") as mesh:
        found = Watch(root, mesh).polls(MOVES)
        assert found[training.JOB_SEEN.name] == {("east", "run", "n7", "ras", "still"): 1}


def test_nobody_is_asked_before_a_process_has_settled(root: Path, mesh: RasJob) -> None:
    assert Watch(root, mesh, settled_seconds=120.0).polls(MOVES, MOVES) == {}
    assert len(mesh.asked_seconds) == 0


@pytest.mark.parametrize(("ago_seconds", "steps", "asks"), [(5, 1, 0), (90, 1, 1), (90, 0, 0)])
def test_a_page_that_tells_of_progress_or_of_no_step_yet_saves_the_question(
    root: Path, mesh: RasJob, ago_seconds: float, steps: int, asks: int
) -> None:
    page = LivePage(root, rank=0, job_id="4242")
    page.replace_identity(pid=mesh.pids[0])
    if steps:
        page.step(1)
    page.phase("sync", ago_seconds=ago_seconds)
    found = Watch(root, mesh).polls(MOVES)
    assert len(mesh.asked_seconds) == asks
    assert training.JOB_SEEN.name not in found or os.getuid() != 0


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        (("sync", "sync"), {("3", "unknown", "behind_in_launches_by_ras", f"{ord('A'):016x}")}),
        (("sync", "backward"), {("1", "backward", "outside_of_waits", "")}),
    ],
)
def test_a_hang_that_pages_leave_open_names_the_rank_that_nccl_names(
    root: Path, mesh: RasJob, phases: tuple[str, ...], expected: set[tuple[str, ...]]
) -> None:
    for rank, phase in enumerate(phases):
        page = LivePage(root, rank=rank, job_id="4242", world_size=8)
        page.replace_identity(pid=mesh.pids[rank])
        page.step(1)
        page.phase(phase, ago_seconds=200)
    watch = Watch(root, mesh)
    found = watch.polls(*[BEHIND] * 3)
    assert {labels[3:] for labels in found[training.HANG_MISSING.name]} == expected
    names_others = "names others: rank 3" in watch.hangs.recent.json.decode()
    assert names_others == ("backward" in phases)


def test_processes_that_cannot_be_listed_are_said_and_end_no_watch(tmp_path: Path) -> None:
    processes = NcclProcesses(procfs=tmp_path / "away")
    assert processes.find() == []
    assert processes.refusals == {"processes cannot be listed: No such file or directory"}
