"""Atomic writes replace files, and only files."""

import os
import stat
from pathlib import Path

import pytest

from lockstep_records.file_access.atomic_file import write_atomically


def test_a_file_is_replaced_with_the_mode_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    write_atomically(path, "new", mode=0o600)
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o600)
    assert list(tmp_path.iterdir()) == [path]


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
