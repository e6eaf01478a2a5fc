"""The one way to open a file that another user may have written.

A tenant may put anything at a path that he owns: a link to somebody else's file, a FIFO that blocks
its reader, a device, a file of terabytes. So no reader follows a link, waits at open, or trusts a
size, and all checks are made on the descriptor that is read, never on the path.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK_BYTES = 1 << 20


class ForeignFileError(OSError):
    """A file that is not read; the text is one sentence that names the path and the reason."""


def owner_of(folder: Path) -> int:
    """User id of a folder; the kernel's word on whose job it is.

    Raises:
        ForeignFileError: it is a link or no folder.
        OSError: it cannot be looked at.
    """
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise ForeignFileError(f"{folder} is not a folder itself; a link to one is not followed")
    return status.st_uid


@contextmanager
def open_foreign(path: Path, *, owner: int | None = None) -> Iterator[int]:
    """A descriptor to read a regular file with.

    Neither the file nor the folder that holds it may be a link.

    Args:
        path: of the file.
        owner: user id that the file must have, that of the job's folder; None for any.

    Raises:
        ForeignFileError: it is a link, no regular file, has a second name, or another owner.
        OSError: it cannot be opened.
    """
    folder = os.open(path.parent, _FOLDER_FLAGS)
    try:
        descriptor = os.open(path.name, _FILE_FLAGS, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        _check(path, os.fstat(descriptor), owner)
        yield descriptor
    finally:
        os.close(descriptor)


def read_foreign(path: Path, max_bytes: int, *, owner: int | None = None) -> bytes:
    """The whole content of a regular file.

    Args:
        path: of the file.
        max_bytes: a longer file is refused.
        owner: see ``open_foreign``.

    Raises:
        ForeignFileError: see ``open_foreign``; or it is longer than ``max_bytes``.
        OSError: it cannot be opened or read.
    """
    with open_foreign(path, owner=owner) as descriptor:
        chunks, length = [], 0
        while chunk := os.read(descriptor, min(_CHUNK_BYTES, max_bytes + 1 - length)):
            chunks.append(chunk)
            length += len(chunk)
            if length > max_bytes:
                raise ForeignFileError(f"{path} is longer than {max_bytes} bytes; it is not read")
    return b"".join(chunks)


def _check(path: Path, status: os.stat_result, owner: int | None) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ForeignFileError(f"{path} is not a regular file; it is not read")
    # A hard link would lend its owner's rights to a name that a stranger has chosen. A file that
    # was deleted or replaced while it was open has none.
    if status.st_nlink > 1:
        raise ForeignFileError(f"{path} has {status.st_nlink} names; a file of a job has one")
    if owner is not None and status.st_uid != owner:
        raise ForeignFileError(
            f"{path} is of user {status.st_uid} in a folder of user {owner}; it is not read"
        )
