"""Jobs without a line of ours, seen through files of the Inspector that this test writes."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from reports.readers.inspector_files import DATA_PARALLEL, InspectedJob
from reports.readers.inspector_hostile import FOLDERS, LATE, RANKS
from reports.report_command import report_json

from lockstep_agent.collectors.jobs.hangs import Hangs
from lockstep_agent.collectors.jobs.watched import Watched
from lockstep_agent.jobs.inspector_watch import InspectorWatch
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.jobs.watched_jobs import WatchedJobs
from lockstep_agent.sources.inspector_processes import InspectorProcesses
from lockstep_agent.sources.pods import PodNames
from lockstep_catalogue import training
from lockstep_outcomes.progress.hangs import HangTimeouts
from lockstep_reports.jobs_command import jobs

from ..values import training_values

SECOND = "1000000"
JOB = ("east", "4242", "n7")
Found = dict[str, dict[tuple[str, ...], float]]


class Ranks:
    """Processes of a job that have the Inspector switched on; they write nothing themselves."""

    def __init__(self, folder: Path, number: int, **variables: str) -> None:
        self.folder = folder
        folder.mkdir()
        self._ranks = [
            subprocess.Popen(
                ["sleep", "3600"],
                env={
                    "RANK": str(rank),
                    "WORLD_SIZE": str(number),
                    "SLURM_JOB_ID": "4242",
                    "NCCL_INSPECTOR_ENABLE": "1",
                    "NCCL_INSPECTOR_DUMP_DIR": str(folder),
                    "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": SECOND,
                    **variables,
                },
            )
            for rank in range(number)
        ]
        self.pids = [each.pid for each in self._ranks]
        self.files = [folder / f"n1-pid{pid}.log" for pid in self.pids]

    def end(self) -> None:
        for each in self._ranks:
            each.kill()
            each.wait()


class OwnProcesses(InspectorProcesses):
    """Those that this test has started."""

    def _pids(self) -> Iterator[int]:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
        return map(int, children.split())


class Seen:
    """The agent's watch and its two collectors, with a clock that goes on when it is told."""

    def __init__(self, root: Path) -> None:
        self.now, self.root = time.time(), root
        pages = PageStore(root, Path("/proc"), cluster="east")
        self.watch = InspectorWatch(
            pages,
            OwnProcesses(settled_seconds=0.0),
            PodNames(root),
            120.0,
            wall_clock=lambda: self.now,
        )
        self.jobs = WatchedJobs((self.watch,), "east")
        self.hangs = Hangs(pages, "n7", Path("/proc"), HangTimeouts(), watched=self.jobs)
        self.collector = Watched(self.watch, self.jobs, "n7", root)

    def poll(self, seconds: float = 0.0) -> Found:
        self.now += seconds
        self.watch.run_once()
        return training_values(self.collector.readings(), self.hangs.collect())

    def touch(self, *files: Path) -> None:
        for file in files:
            os.utime(file, (self.now, self.now))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "jobs").mkdir(parents=True)
    return tmp_path / "root"


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    started = Ranks(tmp_path / "dumps", 5)
    yield started
    started.end()


class Dumps:
    """Files of a job of five ranks that grow part by part, as their dumps come."""

    def __init__(self, ranks: Ranks, seen: Seen) -> None:
        self.ranks, self.seen, self._done = ranks, seen, 0
        job = InspectedJob(
            num_ranks=5, steps=120, pids=ranks.pids, has_traces=True, plan=DATA_PARALLEL,
            late=lambda rank, _, operation: 30.0 * (rank == LATE and operation == 0),
        )  # fmt: skip
        self._lines = []
        for rank, file in enumerate(sorted(job.write(ranks.folder).iterdir(), key=str)):
            self._lines.append(file.read_bytes())
            file.unlink()
            assert str(ranks.pids[rank]) in file.name
            ranks.files[rank] = file

    def grow(self, parts: int = 1, *, without: int = -1) -> None:
        """Appends a tenth of the lines, which may end in the middle of one."""
        for rank, (file, lines) in enumerate(zip(self.ranks.files, self._lines, strict=True)):
            size = len(lines) // 10
            if rank != without:
                with file.open("ab") as end:
                    end.write(lines[self._done * size : (self._done + parts) * size])
                self.seen.touch(file)
        self._done += parts


def test_a_job_without_a_line_has_ranks_steps_and_a_stand(root: Path, ranks: Ranks) -> None:
    seen = Seen(root)
    assert seen.poll() == {}
    dumps = Dumps(ranks, seen)
    for _ in range(9):
        seen.now += 60
        dumps.grow()
        found = seen.poll()
    assert found[training.RANKS.name][*JOB, "training"] == 5
    assert found[training.JOB_SEEN.name] == {(*JOB, "inspector", "moving"): 1}
    assert found[training.HUNG_RANKS.name] == {JOB: 0}
    assert set(seen.watch.moving_pids()) == set(ranks.pids)
    assert found[training.COLLECTIVES.name][*JOB, "all_reduce"] == pytest.approx(5 * 216, abs=5)
    steps = found[training.STEPS.name]
    assert set(steps) == {("east", "4242", str(rank)) for rank in range(5)}
    assert min(steps.values()) > 60
    seconds = found[training.PHASE_SECONDS.name]
    waited = {rank: seconds["east", "4242", str(rank), "sync"] for rank in range(5)}
    assert min(waited, key=lambda rank: waited[rank]) == LATE
    assert sum(seconds["east", "4242", "0", phase] for phase in ("sync", "other")) == pytest.approx(
        9 / 10 * 120 * 0.16, rel=0.1
    )
    last = seen.now
    found = seen.poll(900)
    assert found[training.HUNG_RANKS.name] == {JOB: 5}
    assert training.HANG_MISSING.name not in found  # completed operations tell of nobody
    assert found[training.JOB_SEEN.name] == {(*JOB, "inspector", "hang"): 1}
    assert found[training.LAST_PROGRESS.name]["east", "4242", "3"] == pytest.approx(last, abs=1)
    assert b"nothing was written by the files of NCCL's Inspector" in seen.hangs.recent.json
    seen.collector.write()
    [job] = json.loads(CliRunner().invoke(jobs, ["--json", "--dir", str(root)]).output)
    assert (job["job_id"], job["ranks"], job["seen_by"]) == ("4242", 5, "inspector")
    assert job["headline"].startswith("by inspector: The job hangs: no rank completes")
    dumps.grow()
    assert seen.poll(30)[training.HUNG_RANKS.name] == {JOB: 0}


def test_a_rank_whose_file_alone_stands_is_unknown_and_not_well(root: Path, ranks: Ranks) -> None:
    seen = Seen(root)
    dumps = Dumps(ranks, seen)
    for _ in range(3):
        dumps.grow()
        seen.poll(60)
    for _ in range(5):
        dumps.grow(without=3)
        found = seen.poll(60)
    assert found[training.JOB_SEEN.name] == {(*JOB, "inspector", "suspect"): 1}
    assert training.HUNG_RANKS.name not in found
    [job] = seen.jobs.jobs
    assert job.finding
    assert job.finding.sentence.startswith(f"Rank 3 (pid {ranks.pids[3]}) writes nothing")


@pytest.mark.parametrize(("interval", "kind"), [(SECOND, "moving"), ("-1", "unseen")])
def test_a_program_that_has_written_nothing_is_no_job_that_moves(
    root: Path, tmp_path: Path, interval: str, kind: str
) -> None:
    ranks = Ranks(tmp_path / "dumps", 2, NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=interval)
    try:
        seen = Seen(root)
        for file in ranks.files:
            file.touch()
        found = seen.poll()
        assert found[training.JOB_SEEN.name] == {(*JOB, "inspector", "unseen"): 1}
        assert training.HUNG_RANKS.name not in found
        [job] = seen.jobs.jobs
        assert job.finding
        assert ("is told to write nothing" in job.finding.sentence) == (kind == "unseen")
    finally:
        ranks.end()


def test_the_text_of_gpus_tells_by_its_age_alone(root: Path, tmp_path: Path) -> None:
    ranks = Ranks(tmp_path / "dumps", 2, NCCL_INSPECTOR_PROM_DUMP="1")
    labels = 'version="v5.1",slurm_job_id="4242",node="n1",gpu="GPU{}",nranks="2"'
    files = [ranks.folder / f"nccl_inspector_metrics_{gpu:08x}.prom" for gpu in range(2)]
    try:
        seen = Seen(root)
        for _ in range(4):
            for gpu, file in enumerate(files):
                name = "nccl_collective_exec_time_microseconds"
                file.write_text(f"{name}{{{labels.format(gpu)}}} 90.5\n{name}{{ver")
            seen.touch(*files)
            found = seen.poll(30)
        assert found[training.JOB_SEEN.name] == {(*JOB, "inspector", "moving"): 1}
        assert found[training.RANKS.name][*JOB, "training"] == 2
        assert training.STEPS.name not in found
        for _ in range(10):
            seen.touch(files[0])
            found = seen.poll(30)
        assert found[training.JOB_SEEN.name] == {(*JOB, "inspector", "suspect"): 1}
        assert seen.poll(600)[training.HUNG_RANKS.name] == {JOB: 2}
    finally:
        ranks.end()


@pytest.mark.skipif(os.getuid() != 0, reason="gives files away")
@pytest.mark.parametrize("of_folder", [True, False])
def test_files_and_folders_of_other_users_are_not_read(
    root: Path, ranks: Ranks, of_folder: bool, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen(root)
    Dumps(ranks, seen).grow(5)
    for path in [ranks.folder] if of_folder else ranks.files:
        os.chown(path, 12345, 12345)
    found = seen.poll()
    assert found[training.JOB_SEEN.name] == {(*JOB, "inspector", "unseen"): 1}
    assert "of user 12345" in caplog.text


OTHER_VERDICTS = {
    "negative": "unknown",  # too much of it cannot be
    "clocks": "unknown",
    "not_numbers": "unknown",
    "long_line": "unknown",  # rows of that rank are missing
    "two_jobs": "nobody",  # of the job that wrote last
}


@pytest.mark.parametrize("name", FOLDERS)
def test_hostile_folders_cost_little_and_accuse_no_healthy_rank(
    name: str, root: Path, ranks: Ranks, capfd: pytest.CaptureFixture[str]
) -> None:
    FOLDERS[name](ranks.files)
    seen, begin = Seen(root), time.monotonic()
    found = seen.poll()
    for _ in range(9):  # a run reads a part of a long file
        found = seen.poll()
    assert time.monotonic() - begin < 10
    [((*_, kind), _)] = found[training.JOB_SEEN.name].items()
    assert kind == "moving"
    assert found[training.RANKS.name][*JOB, "training"] >= RANKS
    begin = time.monotonic()
    payload = report_json(ranks.folder)
    assert time.monotonic() - begin < 60
    verdict = payload["verdict"]
    kind = OTHER_VERDICTS.get(name, "rank")
    assert (verdict["kind"], verdict["ranks"]) == (kind, [LATE] if kind == "rank" else []), verdict
    assert "SECRET" not in json.dumps(payload) + "".join(capfd.readouterr())
