"""A page is born on a tmpfs with all its space, or not at all; then nothing stops its writer."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from sample_pages import IDENTITY, write_step, written_page

from lockstep_records.page.layout import page_bytes
from lockstep_records.page.writer import NoPageError, PageWriter, file_system_of, rows_for


@pytest.fixture
def tiny(memory: Path) -> Iterator[Path]:
    """A tmpfs of one mebibyte."""
    folder = memory / "tiny"
    folder.mkdir()
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", folder],
            capture_output=True,
            check=False,
        ).returncode
    )
    if not mounted:
        pytest.skip("mounting a tmpfs needs root")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder on whatever holds this repository."""
    folder = Path(tempfile.mkdtemp(prefix=".no-tmpfs-", dir=Path(__file__).parent))
    if file_system_of(folder) in {"tmpfs", "ramfs"}:
        pytest.skip("the repository lies on a tmpfs")
    yield folder
    shutil.rmtree(folder)


def test_a_page_takes_all_its_space_at_birth_and_is_closed_to_others(memory: Path) -> None:
    path = written_page(memory, steps=0, rows=1024)
    status = path.stat()
    assert status.st_size == page_bytes(1024) <= status.st_blocks * 512
    assert status.st_mode & 0o777 == 0o640


def test_a_folder_that_is_no_tmpfs_is_refused_and_nothing_is_left(disk: Path) -> None:
    with pytest.raises(NoPageError, match="set LOCKSTEP_DIR to a folder on a tmpfs"):
        PageWriter(disk / "0" / "rank-00003.page", IDENTITY, 16)
    assert list(disk.iterdir()) == []


def test_a_full_tmpfs_is_refused_and_nothing_is_left(tiny: Path) -> None:
    with pytest.raises(NoPageError, match=r"needs \d+ bytes and its file system has no room"):
        PageWriter(tiny / "rank-00003.page", IDENTITY, 65_536)
    assert list(tiny.iterdir()) == []
    assert os.statvfs(tiny).f_bfree == os.statvfs(tiny).f_blocks
    assert written_page(tiny, steps=1).is_file()


def test_a_page_that_is_there_already_is_refused_and_stays(memory: Path) -> None:
    path = written_page(memory, steps=2)
    before = path.read_bytes()
    with pytest.raises(NoPageError, match="File exists"):
        PageWriter(path, IDENTITY, 16)
    assert path.read_bytes() == before


def test_a_file_where_the_folder_should_be_is_refused(memory: Path) -> None:
    (memory / "0").touch()
    with pytest.raises(NoPageError, match="cannot be made"):
        PageWriter(memory / "0" / "rank-00003.page", IDENTITY, 16)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(memory: Path) -> None:
    memory.chmod(0o500)
    with pytest.raises(NoPageError, match="Permission denied"):
        PageWriter(memory / "0" / "rank-00003.page", IDENTITY, 16)


def test_a_writer_goes_on_when_its_folder_is_deleted(memory: Path) -> None:
    folder = memory / "jobs" / "job-a" / "0"
    writer = PageWriter(folder / "rank-00003.page", IDENTITY, 16)
    write_step(writer)
    shutil.rmtree(memory / "jobs")
    for _ in range(40):
        write_step(writer)
    writer.close()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("folder", "kind"),
    [("/mnt/mem/x", "tmpfs"), ("/mnt/memo", "btrfs"), ("/srv/a b/c", "ext4"), ("/", "xfs")],
)
def test_the_file_system_is_the_longest_mounts(tmp_path: Path, folder: str, kind: str) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 8:1 / / rw - xfs /dev/a rw\n"
        "2 1 0:5 / /mnt rw shared:2 - btrfs /dev/c rw\n"
        "3 2 0:6 / /mnt/mem rw - tmpfs tmpfs rw\n"
        "4 1 8:2 / /srv/a\\040b rw - ext4 /dev/b rw\n"
    )
    assert file_system_of(Path(folder), table) == kind


@pytest.mark.parametrize(
    ("free_bytes", "ranks", "rows"),
    [
        (64 << 20, "8", 8192),  # /dev/shm of a pod
        (64 << 20, "", 8192),
        (1 << 20, "8", 1024),
        (0, "0", 1024),
        (64 << 30, "8", 65_536),
    ],
)
def test_eight_pages_take_a_quarter_of_a_small_tmpfs(
    free_bytes: int, ranks: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = SimpleNamespace(f_bavail=free_bytes >> 12, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: status)
    assert rows_for(tmp_path / "not" / "yet", {"LOCAL_WORLD_SIZE": ranks}) == rows
