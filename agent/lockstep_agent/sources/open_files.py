"""Small files that are read again and again: kept open, and read with one call each.

An open attribute of /sys holds nothing back: the kernel computes it anew at each read from
offset 0, and a device that goes away answers with an error, upon which the file is let go.
"""

import errno
import os
import re
import time
from collections.abc import Callable

_MOST_BYTES = 4096
_WHOLE = re.compile(rb"[0-9]{1,20}")
_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR})


class OpenFiles:
    """Reads files, keeping some of them open; all are closed with it.

    Args:
        max_open: how many stay open; further ones are opened for each read.
        again_seconds: how long a file that refused is left alone; some adapters write a line to
            the kernel log for each refusal.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        max_open: int = 256,
        again_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_open, self._again_seconds, self._clock = max_open, again_seconds, clock
        self._open: dict[str, int] = {}
        self._refused: dict[str, float] = {}
        self._folders: dict[str, tuple[int, int]] = {}

    def __del__(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open = {}

    def read(self, path: str) -> bytes | None:
        """The first 4,096 bytes of a file, None when it cannot be read."""
        descriptor = self._open.get(path)
        if descriptor is not None:
            try:
                return os.pread(descriptor, _MOST_BYTES, 0)
            except OSError:
                os.close(self._open.pop(path))
        return self._read_anew(path)

    def count(self, path: str) -> int | None:
        """The whole number in a file, None when there is none or it is negative."""
        told = self.read(path)
        if told is None:
            return None
        told = told.strip()
        return int(told) if _WHOLE.fullmatch(told) else None

    def text(self, path: str) -> str | None:
        """What is in a file, stripped, None when it cannot be read."""
        told = self.read(path)
        return None if told is None else told.decode("utf-8", "replace").strip()

    def is_present(self, folder: str) -> bool:
        """Whether a folder is there; files of one that went or was replaced are let go."""
        try:
            status = os.stat(folder)  # noqa: PTH116  # once a port and tick: no Path in between
        except OSError:
            self.forget(folder)
            return False
        identity = (status.st_dev, status.st_ino)
        if self._folders.setdefault(folder, identity) != identity:
            self.forget(folder)
            self._folders[folder] = identity
        return True

    def forget(self, folder: str) -> None:
        """Closes every file below a folder."""
        self._folders.pop(folder, None)
        below = folder + "/"
        for path in [path for path in self._open if path.startswith(below)]:
            os.close(self._open.pop(path))
        for path in [path for path in self._refused if path.startswith(below)]:
            del self._refused[path]

    def _read_anew(self, path: str) -> bytes | None:
        if path in self._refused and self._clock() < self._refused[path]:
            return None
        try:
            # NONBLOCK: what stands there may be no file of the kernel
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            self._refuse(path, error)
            return None
        keep = False
        try:
            told = os.pread(descriptor, _MOST_BYTES, 0)
            keep = len(self._open) < self._max_open
        except OSError as error:
            self._refuse(path, error)
            return None
        finally:
            if not keep:
                os.close(descriptor)
        if keep:
            self._open[path] = descriptor
        self._refused.pop(path, None)
        return told

    def _refuse(self, path: str, error: OSError | ValueError) -> None:
        if not (isinstance(error, OSError) and error.errno in _GONE):
            self._refused[path] = self._clock() + self._again_seconds
