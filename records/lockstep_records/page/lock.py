"""The lock by which a running rank is told from one that ended: one byte of its page.

A POSIX record lock belongs to a process. The kernel drops it when the process ends, however it
ends, no child inherits it, and it answers F_GETLK from any PID namespace. The trap: closing any
other descriptor of the file in the same process drops it too. So a process that holds pages reads
them through the descriptors of its locks.
"""

import fcntl
import os
import struct
import weakref
from dataclasses import dataclass
from pathlib import Path

from lockstep_records.file_access.foreign_files import open_descriptor

_FLOCK = struct.Struct("hhqqi4x")  # type, whence, start, length, pid; of 64-bit Linux
_QUERY = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
# By device and inode. Weak: a writer that is forgotten closes its page, and the lock goes with it.
_held: "weakref.WeakValueDictionary[tuple[int, int], PageLock]" = weakref.WeakValueDictionary()
os.register_at_fork(after_in_child=_held.clear)  # a child holds none of them


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a page; its pid is None where this PID namespace has none of it."""

    pid: int | None


class PageLock:
    """Keeps a page, open for writing, locked for the life of this process, or until released."""

    def __init__(self, descriptor: int, *, is_wanted: bool = True) -> None:
        self.descriptor = descriptor
        status = os.fstat(descriptor)
        self._key = status.st_dev, status.st_ino
        self.is_held = is_wanted and _lock(descriptor)
        if self.is_held:
            _held[self._key] = self
        else:
            self.release()

    def renew(self) -> None:
        """Locks again: code of the user may have opened and closed the page in this process."""
        if self.is_held and self.descriptor >= 0:
            _lock(self.descriptor)

    def release(self) -> None:
        """Closes the descriptor, and unlocks the page with it."""
        if _held.get(self._key) is self:
            del _held[self._key]
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        self.release()


def _lock(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError:
        return False
    return True


def open_page(path: Path, owner: int | None = None) -> int:
    """A descriptor to read a page with, that of the lock where it is held here; or OSError."""
    if _held:
        status = path.lstat()
        own = _held.get((status.st_dev, status.st_ino))
        if own is not None:
            return own.descriptor
    return open_descriptor(path, owner=owner)


def close_page(descriptor: int) -> None:
    """Closes what ``open_page`` gave, unless it is that of a lock."""
    if _held:
        status = os.fstat(descriptor)
        own = _held.get((status.st_dev, status.st_ino))
        if own is not None and own.descriptor == descriptor:
            return
    os.close(descriptor)


def holder_of(path: Path) -> Holder | None:
    """The process that holds a page, one microsecond's question, or None; raises OSError."""
    descriptor = open_page(path)
    try:
        status = os.fstat(descriptor) if _held else None
        # The kernel does not answer a process about its own locks.
        if status is not None and (status.st_dev, status.st_ino) in _held:
            return Holder(os.getpid())
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _QUERY)
    finally:
        close_page(descriptor)
    kind, _, _, _, pid = _FLOCK.unpack(answer)
    if kind == fcntl.F_UNLCK:
        return None
    return Holder(pid if pid > 0 else None)  # 0: the holder has no pid in this namespace
