"""Atomic writes replace files, and only files."""

import os
import stat
from pathlib import Path

import pytest

from lockstep_records.file_access.atomic_file import write_atomically


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_in_one_move_with_its_mode(tmp_path: Path, *, durable: bool) -> None:
    path = tmp_path / "state.json"
    write_atomically(path, "old")
    write_atomically(path, b"new", mode=0o640, durable=durable)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["state.json"]  # noqa: PTH208  # hidden files too


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "taken"
    path.mkdir()
    (path / "inside").write_text("x", encoding="utf-8")
    with pytest.raises(OSError, match="directory"):
        write_atomically(path, "new")
    assert sorted(os.listdir(tmp_path)) == ["taken"]  # noqa: PTH208  # hidden files too


@pytest.mark.skipif(os.geteuid() != 0, reason="making a device needs root")
def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    null = tmp_path / "null"
    os.mknod(null, stat.S_IFCHR | 0o666, Path("/dev/null").stat().st_rdev)
    write_atomically(null, "text")
    assert stat.S_ISCHR(null.stat().st_mode)
    assert list(tmp_path.iterdir()) == [null]


def test_a_pipe_gets_the_content_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="No such device"):
        write_atomically(pipe, "nobody reads")
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as reader:
        write_atomically(pipe, "x" * 100)
        assert reader.read() == "x" * 100
    assert stat.S_ISFIFO(pipe.stat().st_mode)
