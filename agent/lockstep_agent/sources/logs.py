"""Logs as messages: the kernel's ring buffer, and files as dmesg and syslog write them."""

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from lockstep_records.kernel.lines import RECORD, USER_PRIORITY, Message, read_line, truncate

_RECORD_BYTES = 16 << 10
_FILE_BYTES = 4 << 20
_MAX_LINE_BYTES = 32 << 10
_MAX_MESSAGES = 5000

Position = dict[str, int]
"""How far a log was read: ``sequence`` of the ring, or ``inode`` and ``offset`` of a file."""


class Log(Protocol):
    """A log that is read on from a position.

    Attributes:
        position: how far the log was read.
        lost: messages since the start that were overwritten before they were read.
        unknown: lines since the start that have no stamp of a kind that is known, the first of
            them as ``first_unknown``.
    """

    position: Position
    lost: int
    unknown: int
    first_unknown: str

    def read(self) -> Iterator[Message]:
        """The messages since the last call, at most 5,000; OSError where the log cannot be read."""
        ...


def open_log(path: Path, position: Position) -> Log:
    """The log at a path: the kernel's ring buffer for a device, else a file."""
    try:
        is_ring = stat.S_ISCHR(path.stat().st_mode)
    except OSError:
        is_ring = False
    return Ring(path, position) if is_ring else LogFile(path, position)


class Ring:
    """``/dev/kmsg``: one record per read, numbered by the kernel; a gap in the numbers is a loss.

    Args:
        position: ``sequence`` of the last record that was read; empty to read all records.
        read_record: reads one record from a descriptor; raises BlockingIOError at the end.
    """

    def __init__(
        self, path: Path, position: Position, read_record: Callable[[int, int], bytes] = os.read
    ) -> None:
        self._path, self._read_record = path, read_record
        self._descriptor: int | None = None
        self.position, self.lost, self.unknown = dict(position), 0, 0
        self.first_unknown = ""

    def read(self) -> Iterator[Message]:
        """The records after the last one read."""
        if self._descriptor is None:
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags)
        # /dev/kmsg counts microseconds since boot
        booted_seconds = time.time() - time.monotonic()
        for _ in range(_MAX_MESSAGES):
            try:
                record = self._read_record(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                # EPIPE: the ring overran the reader, whose next read gets the oldest record;
                # EINVAL: the record is longer than the buffer
                if error.errno in {errno.EPIPE, errno.EINVAL}:
                    continue
                raise
            if not record:
                break
            match = RECORD.match(record.decode(errors="replace"))
            if match is None or not self._is_new(int(match["sequence"])):
                continue
            if int(match["priority"]) < USER_PRIORITY:
                seconds = int(match["micros"]) / 1e6
                yield Message(truncate(match["text"]), seconds, booted_seconds + seconds)

    def _is_new(self, sequence: int) -> bool:
        last = self.position.get("sequence")
        if last is not None and sequence <= last:
            return False
        if last is not None:
            self.lost += sequence - last - 1
        self.position["sequence"] = sequence
        return True


class LogFile:
    """A file that grows; one that was replaced or truncated is read from its beginning."""

    def __init__(self, path: Path, position: Position) -> None:
        self._path = path
        self._before: Message | None = None
        self.position, self.lost, self.unknown = dict(position), 0, 0
        self.first_unknown = ""

    def read(self) -> Iterator[Message]:
        """The complete lines after the last one read; a line without its end waits."""
        with self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            offset = self.position.get("offset", 0)
            if self.position.get("inode") != status.st_ino or status.st_size < offset:
                offset = 0
            file.seek(offset)
            chunk = file.read(_FILE_BYTES)
        complete = chunk[: chunk.rfind(b"\n") + 1]
        if not complete and len(chunk) == _FILE_BYTES:
            complete = (
                chunk  # 4 MiB without a line end: no kernel writes that, so it passes as one line
            )
        now = time.time()
        for line in complete.splitlines(keepends=True)[:_MAX_MESSAGES]:
            offset += len(line)
            self.position = {"inode": status.st_ino, "offset": offset}
            # 32 KiB hold any line that is not made to be long.
            text = line[:_MAX_LINE_BYTES].decode(errors="replace").rstrip("\r\n")
            message, is_known = read_line(text, now, self._before)
            self._before = message or self._before
            # Lines that go on with the one before have no stamp of their own.
            if not is_known and text and not text[0].isspace():
                self.unknown += 1
                self.first_unknown = self.first_unknown or truncate(text)
            if message is not None:
                yield message
