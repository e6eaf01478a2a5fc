"""Small files of /sys and /proc, folders and links; what the kernel does not report is None."""

import errno
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

_TOTAL = re.compile(r"^(some|full) .*\btotal=([0-9]{1,20})$", re.MULTILINE)
_MICRO = 1e-6
_MAX_BYTES = 4096
_COUNT = re.compile(rb"[0-9]{1,20}")
_RETRY_SECONDS = 60.0  # before a file that refused is read again
_MISSING = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR})


class Due:
    """Is due at once, and again each time its interval has passed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next_seconds = time.monotonic()

    def is_due(self) -> bool:
        """Whether the interval has passed; True starts the next interval."""
        now = time.monotonic()
        if now < self._next_seconds:
            return False
        self._next_seconds = now + self._seconds
        return True


def list_names(folder: str) -> list[str]:
    """The names in a folder, sorted, only those that can be a label; empty for a missing folder."""
    try:
        return sorted(name for name in os.listdir(folder) if name.isprintable())  # noqa: PTH208  # names only
    except (OSError, ValueError):
        return []


def link_target_name(path: str) -> str:
    """Last part of the target of a symbolic link; empty for a missing link."""
    try:
        name = os.readlink(path).rpartition("/")[2]  # noqa: PTH115  # text in, text out
    except (OSError, ValueError):
        return ""
    return name if name.isprintable() else ""


def read_text(path: Path) -> str | None:
    """The first 4,096 characters of a file, stripped; None for a file that cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(4096).strip()
    except OSError:
        return None


def stalled_seconds(text: str | None) -> Iterator[tuple[str, float]]:
    """Pairs of ``some`` or ``full`` and seconds, since boot or since the group was created.

    Args:
        text: a file such as ``/proc/pressure/cpu`` or ``cpu.pressure``; None gives no pairs.
    """
    # the totals, not avg10 and its kin: a counter loses nothing between two scrapes
    for pressure, total in _TOTAL.findall(text or ""):
        yield pressure, int(total) * _MICRO


class OpenFiles:
    """Reads files and keeps some of them open; all are closed with it.

    Args:
        max_open: number of files that stay open; further ones are opened for each read.
    """

    def __init__(self, max_open: int = 256) -> None:
        self._max_open = max_open
        self._open: dict[str, int] = {}
        self._refused: dict[str, float] = {}
        self._folders: dict[str, tuple[int, int]] = {}

    def __del__(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open = {}

    def read(self, path: str) -> bytes | None:
        """The first 4,096 bytes of a file; None for a file that cannot be read."""
        # os.pread, not open and read: 624 counters take about half the time
        descriptor = self._open.get(path)
        if descriptor is not None:
            try:
                return os.pread(descriptor, _MAX_BYTES, 0)
            except OSError:
                os.close(self._open.pop(path))
        return self._open_and_read(path)

    def count(self, path: str) -> int | None:
        """The whole number in a file; None without one, and for a negative number."""
        content = self.read(path)
        if content is None:
            return None
        content = content.strip()
        return int(content) if _COUNT.fullmatch(content) else None

    def text(self, path: str) -> str | None:
        """The content of a file, stripped; None for a file that cannot be read."""
        content = self.read(path)
        return None if content is None else content.decode("utf-8", "replace").strip()

    def is_present(self, folder: str) -> bool:
        """Whether a folder exists; closes the files of a folder that was removed or replaced."""
        try:
            status = os.stat(folder)  # noqa: PTH116  # once a port and tick: no Path in between
        except OSError:
            self.forget(folder)
            return False
        # an adapter that was reset has a new folder by the same name, and its open files are stale
        identity = (status.st_dev, status.st_ino)
        if self._folders.setdefault(folder, identity) != identity:
            self.forget(folder)
            self._folders[folder] = identity
        return True

    def forget(self, folder: str) -> None:
        """Closes every file below a folder."""
        self._folders.pop(folder, None)
        prefix = folder + "/"
        for path in [path for path in self._open if path.startswith(prefix)]:
            os.close(self._open.pop(path))
        for path in [path for path in self._refused if path.startswith(prefix)]:
            del self._refused[path]

    def _open_and_read(self, path: str) -> bytes | None:
        if path in self._refused and time.monotonic() < self._refused[path]:
            return None
        try:
            # NONBLOCK: a pipe in the file's place must not block the agent
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            self._note_refusal(path, error)
            return None
        stays_open = False
        try:
            content = os.pread(descriptor, _MAX_BYTES, 0)
            stays_open = len(self._open) < self._max_open
        except OSError as error:
            self._note_refusal(path, error)
            return None
        finally:
            if not stays_open:
                os.close(descriptor)
        if stays_open:
            self._open[path] = descriptor
        self._refused.pop(path, None)
        return content

    def _note_refusal(self, path: str, error: OSError | ValueError) -> None:
        # some adapters write a line to the kernel log for each refused read; a missing file is
        # cheap to try again and may appear at any time
        if not (isinstance(error, OSError) and error.errno in _MISSING):
            self._refused[path] = time.monotonic() + _RETRY_SECONDS
