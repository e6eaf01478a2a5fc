"""Creates the file of a page: on a tmpfs, with all its space, in a folder of one's own.

A store into a mapped page of a full file system kills the process, and on a disk it can block for
minutes. So a page is created only on a verified tmpfs, its space allocated by posix_fallocate.
"""

import grp
import mmap
import os
from collections.abc import Mapping
from pathlib import Path

from lockstep_records.file_access.foreign_files import RANK_PREFIX, ForeignFileError
from lockstep_records.file_access.own_files import create_attempt_folder, open_own_folder
from lockstep_records.page.layout import DEFAULT_ROWS, ROW

_MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})
_RANKS_OF_A_NODE, _SHARE, _MIN_ROWS = 8, 4, 1024
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class NoPageError(RuntimeError):
    """A page cannot be created here; the message says why and what would help."""


def rows_for(root: Path, environment: Mapping[str, str]) -> int:
    """Rows of a page that leave three quarters of a small tmpfs to others.

    A pod's /dev/shm has 64 MiB, an emptyDir what its limit says: eight pages of full size fill it.

    Args:
        root: folder of all jobs; it may be created later.
        environment: with the number of ranks on this node, where the launcher says it.
    """
    folder = next(each for each in (root.absolute(), *root.absolute().parents) if each.exists())
    try:
        status = os.statvfs(folder)
    except OSError:
        return DEFAULT_ROWS
    size = environment.get("LOCAL_WORLD_SIZE", "")
    num_ranks = int(size) if size.isdecimal() and int(size) else _RANKS_OF_A_NODE
    share_bytes = status.f_bavail * status.f_frsize // (_SHARE * num_ranks)
    rows = 1 << max(share_bytes // ROW.size, 1).bit_length() - 1
    return min(max(rows, _MIN_ROWS), DEFAULT_ROWS)


def create_mapping(path: Path, size: int) -> mmap.mmap:
    """Creates a file with all its space allocated; raises as ``create_file``."""
    mapping, descriptor = create_file(path, size)
    os.close(descriptor)
    return mapping


def create_file(path: Path, size: int) -> tuple[mmap.mmap, int]:
    """Creates a file with all its space allocated: its mapping, and a descriptor of it.

    Raises:
        NoPageError: that is impossible here; no file is left behind.
    """
    try:
        kind = file_system_of(path.parent)
        if kind not in _MEMORY_FILE_SYSTEMS:
            raise NoPageError(
                f"folder {path.parent} is on {kind or 'an unknown file system'}, where a store "
                "can block the step; set LOCKSTEP_DIR to a folder on a tmpfs such as /dev/shm"
            )
        create_attempt_folder(path.parent)
        with open_own_folder(path.parent, in_attempt=path.name.startswith(RANK_PREFIX)) as folder:
            return _create_in(folder, path, size)
    except ForeignFileError as error:
        raise NoPageError(
            f"page {path} cannot be made: {error}; give the job another id"
        ) from error
    except OSError as error:
        if isinstance(error, FileExistsError) and path.exists():
            raise NoPageError(
                f"page {path} is there already (File exists): a rank of this job id runs, or this "
                "process has attached before; give the job another id"
            ) from error
        raise NoPageError(
            f"page {path} cannot be made ({error.strerror}); "
            "set LOCKSTEP_DIR to a writable folder on a tmpfs"
        ) from error


def _create_in(folder: int, path: Path, size: int) -> tuple[mmap.mmap, int]:
    descriptor = os.open(path.name, _FLAGS, 0o640, dir_fd=folder)
    try:
        # Takes the memory now: a later store into a full tmpfs would kill the process by SIGBUS.
        os.posix_fallocate(descriptor, 0, size)
        _share_with_group(folder, path.name)
        return mmap.mmap(descriptor, size), descriptor
    except OSError as error:
        os.close(descriptor)
        os.unlink(path.name, dir_fd=folder)
        raise NoPageError(
            f"page {path} needs {size} bytes and its file system has no room ({error.strerror}); "
            "free some or set LOCKSTEP_DIR to another tmpfs"
        ) from error


def _share_with_group(folder: int, name: str) -> None:
    """Gives folder and page to the group lockstep where there is one, so that the agent reads."""
    try:
        group = grp.getgrnam("lockstep").gr_gid
        for entry in (".", name):
            os.chown(entry, -1, group, dir_fd=folder, follow_symlinks=False)
    except (LookupError, PermissionError):
        return


def file_system_of(folder: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str:
    """Type of the file system that holds a folder, such as ``tmpfs``; empty when unknown."""
    target, best, kind = str(folder.resolve()), "", ""
    for line in mountinfo.read_text(encoding="utf-8", errors="replace").splitlines():
        head, _, tail = line.partition(" - ")
        mount = head.split()[4].replace("\\040", " ")
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        # Of several mounts on one path the last one is on top.
        if inside and len(mount) >= len(best):
            best, kind = mount, tail.split()[0]
    return kind
