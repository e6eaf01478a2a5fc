"""Two users on one node, one agent: neither touches the other's job. Only root becomes two."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from records.two_users import as_root, run_as

from lockstep_records.files.job_status import archived_jobs, note_archive
from lockstep_records.files.jobs import create_job_folder, page_path
from lockstep_records.page.layout import PHASES
from lockstep_records.page.reader import read_page
from lockstep_records.page.writer import PageWriter, RankIdentity

TMPFILES = Path(__file__).parents[2] / "deploy" / "systemd" / "lockstep-agent.tmpfiles"
ALICE, BOB, AGENT, GROUP = 64_001, 64_002, 64_003, 64_010

pytestmark = [as_root, pytest.mark.timeout(60)]


@pytest.fixture(name="root")
def _root() -> Iterator[Path]:
    """The tree that the entry declares, on a tmpfs, with the numbers of this test for its names."""
    with tempfile.TemporaryDirectory(prefix="lockstep-test-", dir="/dev/shm") as folder:
        Path(folder).chmod(0o755)
        before = os.umask(0)
        for line in TMPFILES.read_text(encoding="utf-8").splitlines():
            if line.startswith("#"):
                continue
            kind, path, mode, user, group, _ = line.split()
            assert (kind, user, group) == ("d", "root", "lockstep")
            created = Path(folder + path)
            created.mkdir(parents=True)
            os.chown(created, 0, GROUP)
            created.chmod(int(mode, 8))
        os.umask(before)
        yield Path(folder, "run/lockstep")


def write_job(root: Path, job_id: str) -> None:
    create_job_folder(root / "jobs" / job_id)
    path = page_path(root, job_id, 0, 0)
    page = PageWriter(path, RankIdentity(job_id=job_id, rank=0, world_size=1), rows=4)
    page.heartbeat(time.monotonic_ns(), PHASES.index("forward"))
    page.commit(time.monotonic_ns())
    page.close()


def expect_denied(work: Callable[[], object]) -> None:
    try:
        work()
    except PermissionError:
        return
    raise AssertionError("that was allowed")


def test_each_user_starts_jobs_and_the_agent_reads_them_all(root: Path) -> None:
    run_as(ALICE, lambda: write_job(root, "of-alice"))
    run_as(BOB, lambda: write_job(root, "of-bob"))

    def read_both() -> None:
        for job_id in ("of-alice", "of-bob"):
            assert read_page(page_path(root, job_id, 0, 0)).identity["job_id"] == job_id
        note_archive(root, ["of-alice"])

    run_as(AGENT, read_both, groups=(GROUP,))
    assert archived_jobs(root) == frozenset({"of-alice"})


def test_no_user_reads_changes_or_removes_what_is_anothers(root: Path) -> None:
    run_as(ALICE, lambda: write_job(root, "of-alice"))
    job, page = root / "jobs" / "of-alice", page_path(root, "of-alice", 0, 0)

    def try_everything() -> None:
        expect_denied(lambda: page.open("rb"))
        expect_denied(lambda: page.open("r+b"))
        expect_denied(page.unlink)
        expect_denied(lambda: list(job.iterdir()))
        expect_denied(lambda: job.rename(root / "jobs" / "of-bob"))
        expect_denied(lambda: (job / "switches.json").write_text("{}"))
        expect_denied((root / "archived").mkdir)

    run_as(BOB, try_everything)
    assert read_page(page).identity["job_id"] == "of-alice"
