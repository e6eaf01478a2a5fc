"""The one way to open a file that another user may have written.

A tenant may put anything at a path that he owns: a link to somebody else's file, a FIFO that blocks
its reader, a device, a file of terabytes, a million names. So no reader follows a link in a job's
folder, waits at open, or trusts a size, and all checks are made on the descriptor that is read,
never on the path. ``own_files`` is the same for writers.
"""

import errno
import logging
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

_log = logging.getLogger(__name__)
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER_FLAGS = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK_BYTES = 1 << 20
_REFUSAL_SECONDS, _MAX_REFUSALS = 60.0, 1024
_refused_seconds: dict[str, float] = {}  # by folder, the last time that it was logged
RANK_PREFIX = "rank-"
"""Begin of the names of files in the folder of an attempt; the others are in that of the job."""


class ForeignFileError(OSError):
    """A file that is not read or written."""

    def __init__(self, path: str | Path, reason: str) -> None:
        super().__init__(errno.EPERM, reason, str(path))

    def __str__(self) -> str:
        """One sentence that names the path and the reason."""
        return f"{self.filename} is refused: {self.strerror}"


def owner_of(folder: Path) -> int:
    """User id of a folder, the kernel's word on whose job it is; OSError or ForeignFileError."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise ForeignFileError(folder, "it is a link or no folder, and no link is followed")
    return status.st_uid


@contextmanager
def open_foreign(path: Path, *, owner: int | None = None) -> Iterator[int]:
    """A descriptor to read a regular file with; see ``open_descriptor``."""
    descriptor = open_descriptor(path, owner=owner)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_descriptor(path: Path, *, owner: int | None = None) -> int:
    """A descriptor to read a regular file with, which the caller closes.

    A refusal is logged once a minute for each folder, since many readers go on without the file.
    Neither the file nor its folder, nor the job's folder above that of an attempt, may be a link;
    ForeignFileError for that, a second name, or another owner than the folder's or the one that is
    given; OSError where it cannot be opened.
    """
    try:
        return _open_checked(path, owner)
    except ForeignFileError as error:
        _log_refusal(error)
        raise


def _open_checked(path: Path, owner: int | None) -> int:
    head, slash, name = str(path).rpartition("/")
    folder = open_folder(head or slash or ".", os.O_PATH, in_attempt=name.startswith(RANK_PREFIX))
    try:
        user = os.fstat(folder).st_uid
        try:
            descriptor = os.open(name, _FILE_FLAGS, dir_fd=folder)
        except OSError as error:
            raise _explain(error, path, user) from error
    finally:
        os.close(folder)
    try:
        check_file(path, os.fstat(descriptor), user if owner is None else owner, user)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_folder(folder: str | Path, mode: int, *, in_attempt: bool) -> int:
    """A descriptor of a job's folder, or of an attempt's; neither may be a link.

    With ``os.O_PATH`` files in it can be opened, with ``os.O_RDONLY`` it can be listed. A folder
    ``in_attempt`` whose name is a number is an attempt's. OSError, or ForeignFileError where it is
    refused.
    """
    # Once a page and second: a Path would double its time.
    job, slash, number = str(folder).rpartition("/")
    flags = _FOLDER_FLAGS | mode
    try:
        if not in_attempt or not number.isdecimal():
            return os.open(folder, flags)
        outer = os.open(job or slash or ".", _FOLDER_FLAGS | os.O_PATH)
        try:
            return os.open(number, flags, dir_fd=outer)
        finally:
            os.close(outer)
    except NotADirectoryError as error:
        reason = "it or the folder above it is a link or no folder, and no link is followed"
        raise ForeignFileError(folder, reason) from error


def check_file(path: Path, status: os.stat_result, owner: int, folder_owner: int) -> None:
    """Checks what was opened; ForeignFileError unless a regular file of one name and owner."""
    reason = ""
    if not stat.S_ISREG(status.st_mode):
        reason = f"no regular file, in a folder of user {folder_owner}"
    # A hard link would lend its owner's rights to a name that a stranger has chosen. A file that
    # was deleted or replaced while it was open has none.
    elif status.st_nlink > 1:
        reason = f"it has {status.st_nlink} names, in a folder of user {folder_owner}"
    elif not status.st_uid == owner == folder_owner:
        reason = f"it is of user {status.st_uid}, in a folder of user {folder_owner}"
        reason += "" if owner == folder_owner else f", of a job of user {owner}"
    if reason:
        raise ForeignFileError(path, reason)


def _explain(error: OSError, path: Path, user: int) -> OSError:
    """The error with a text that names the link or socket, which the kernel's text does not."""
    if error.errno == errno.ELOOP:
        return ForeignFileError(path, f"it is a link, in a folder of user {user}")
    if error.errno == errno.ENXIO:
        return ForeignFileError(path, f"no regular file, in a folder of user {user}")
    return error


def _log_refusal(error: ForeignFileError) -> None:
    folder, now = str(error.filename).rpartition("/")[0], time.monotonic()
    if now - _refused_seconds.get(folder, -_REFUSAL_SECONDS) < _REFUSAL_SECONDS:
        return
    if len(_refused_seconds) >= _MAX_REFUSALS:
        _refused_seconds.clear()
    _refused_seconds[folder] = now
    _log.warning("%s", error)


def read_foreign(path: Path, max_bytes: int) -> bytes:
    """The whole content of a regular file; a longer one than ``max_bytes`` is refused as any."""
    with open_foreign(path) as descriptor:
        data = b"".join(read_chunks(descriptor, max_bytes + 1))
    if len(data) > max_bytes:
        raise ForeignFileError(path, f"it is longer than {max_bytes} bytes")
    return data


def read_chunks(descriptor: int, max_bytes: int) -> Iterator[bytes]:
    """What a descriptor holds from its position on, up to a size, by the mebibyte; or OSError."""
    while max_bytes > 0 and (chunk := os.read(descriptor, min(_CHUNK_BYTES, max_bytes))):
        max_bytes -= len(chunk)
        yield chunk


def scan_foreign(
    folder: Path, pattern: re.Pattern[str], max_entries: int, *, folders: bool = False
) -> Iterator[str]:
    """Names in a folder of a job or an attempt, in no order; OSError or ForeignFileError.

    Args:
        folder: its path.
        pattern: of the whole name.
        max_entries: of the folder that are looked at, whatever they are.
        folders: gives folders of the job's own user, and no links, instead of all entries.
    """
    descriptor = open_folder(folder, os.O_RDONLY, in_attempt=not folders)
    try:
        user = os.fstat(descriptor).st_uid
        with os.scandir(descriptor) as entries:
            for entry in islice(entries, max_entries):
                if pattern.fullmatch(entry.name) and not (folders and user != folder_user(entry)):
                    yield entry.name
    finally:
        os.close(descriptor)


def folder_user(entry: "os.DirEntry[str]") -> int | None:
    """User id of a folder; None for a link, for anything else, and for what nobody may look at.

    A user can mount a file system on an own folder that root cannot look at either (FUSE): that is
    an error of the entry, and never of the list.
    """
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        _log_refusal(ForeignFileError(f"{entry.path}/", f"it is left out ({error.strerror})"))
        return None
    return status.st_uid if stat.S_ISDIR(status.st_mode) else None
