"""The one way to write into the folder of a job: one's own, to which nobody else may write.

Who creates the folder of a job before its user does owns what lies in it, so a folder of another
user is refused, and all work is done with the descriptor of the folder that was checked.
"""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lockstep_records.file_access.foreign_files import (
    RANK_PREFIX,
    ForeignFileError,
    check_file,
    open_folder,
)

_ROOT_USER = 0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FILE_MODE, _FOLDER_MODE = 0o640, 0o2750
_SAFE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def create_attempt_folder(folder: Path) -> None:
    """Creates the folder of an attempt, and that of its job, where they are absent; or OSError.

    Readable for the group of the agent, whatever the umask lets others do.
    """
    job = folder.parent
    if folder.name.isdecimal() and not job.is_dir():
        job.parent.mkdir(parents=True, exist_ok=True)
        job.mkdir(mode=_FOLDER_MODE, exist_ok=True)
    folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)


@contextmanager
def open_own_folder(folder: Path, *, in_attempt: bool = False) -> Iterator[int]:
    """A descriptor for files in one's own folder of a job, or of an attempt of one's own job.

    ForeignFileError where it is a link, another's, or others may write to it; or OSError.
    """
    if in_attempt and folder.name.isdecimal():
        with open_own_folder(folder.parent):
            pass  # whoever owns it could put another folder in the place of this one
    with _opened(folder, in_attempt=in_attempt) as descriptor:
        _check_own(folder, os.fstat(descriptor))
        yield descriptor


@contextmanager
def _opened(folder: Path, *, in_attempt: bool) -> Iterator[int]:
    # Without permission to list it, so that a refusal says whose it is.
    descriptor = open_folder(folder, os.O_PATH, in_attempt=in_attempt)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _check_own(folder: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        reason = f"it belongs to user {status.st_uid}, and this is user {os.geteuid()}"
        raise ForeignFileError(folder, reason)
    if status.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(status.st_mode)
        raise ForeignFileError(folder, f"others may write to it (mode {mode:o}); chmod go-w it")


def _is_root_elsewhere(status: os.stat_result) -> bool:
    return os.geteuid() == _ROOT_USER != status.st_uid


def open_own_file(path: Path, flags: int) -> int:
    """A descriptor to write a file in an own folder with, which the caller closes.

    Without O_CREAT among the ``flags`` of ``os.open`` the file must be there. ForeignFileError
    where the folder is refused, see ``open_own_folder``, or the file is a link, no regular file,
    has a second name, or another owner; OSError where it cannot be opened.
    """
    with open_own_folder(path.parent, in_attempt=path.name.startswith(RANK_PREFIX)) as folder:
        return _open_checked(path, flags, folder, os.geteuid())


def _open_checked(path: Path, flags: int, folder: int, user: int) -> int:
    try:
        descriptor = os.open(path.name, flags | _SAFE_FLAGS, _FILE_MODE, dir_fd=folder)
    except OSError as error:
        if path.is_symlink():
            raise ForeignFileError(path, f"it is a link, in a folder of user {user}") from error
        raise
    try:
        check_file(path, os.fstat(descriptor), user, user)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_for_append(path: Path) -> int:
    """A descriptor to read and extend a file in the folder of a job with, which the caller closes.

    In one's own folder the file is created where it is absent. That of another user is extended
    only where it is there and is that user's, as an agent does that runs as root. Raises as
    ``open_own_file``.
    """
    flags = os.O_RDWR | os.O_APPEND
    with _opened(path.parent, in_attempt=False) as folder:
        status = os.fstat(folder)
        if not _is_root_elsewhere(status):
            _check_own(path.parent, status)
            flags |= os.O_CREAT
        return _open_checked(path, flags, folder, status.st_uid)


def replace_own_file(path: Path, data: bytes | str) -> None:
    """Replaces a file in the folder of a job in one move; nothing else is left when that fails.

    Root may do so in the folder of another user, who then owns the file. Text is written as UTF-8.
    Raises OSError, or ForeignFileError as ``open_own_folder``.
    """
    with _opened(path.parent, in_attempt=path.name.startswith(RANK_PREFIX)) as folder:
        status = os.fstat(folder)
        if not _is_root_elsewhere(status):
            _check_own(path.parent, status)
        # The leading dot hides it from the lists of readers; the random part from other writers.
        temporary = f".{path.name}.{secrets.token_hex(4)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                os.fchmod(descriptor, _FILE_MODE)  # whatever the umask is
                if _is_root_elsewhere(status):
                    os.fchown(descriptor, status.st_uid, -1)
            os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            # After the rename there is nothing of this name any more.
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)


def remove_from_folder(path: Path) -> None:
    """Removes a file of a job if it is there; no folder above it may be a link. Or OSError."""
    with (
        _opened(path.parent, in_attempt=path.name.startswith(RANK_PREFIX)) as folder,
        suppress(FileNotFoundError),
    ):
        os.unlink(path.name, dir_fd=folder)
