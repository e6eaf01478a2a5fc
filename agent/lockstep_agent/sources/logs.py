"""Logs as messages: the kernel's ring, and plain files as dmesg and syslog write them."""

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

_RECORD = re.compile(r"\d{1,10},(?P<sequence>\d{1,18}),(?P<micros>\d{1,18}),[^;]*;(?P<text>.*)")
_SINCE_BOOT = re.compile(r"\[ *(?P<seconds>\d{1,10}\.\d{1,9})\] ?(?P<text>.*)")
_DATED = re.compile(
    r"\[(?:\w{3} )?(?P<month>\w{3}) +(?P<day>\d{1,2}) (?:(?P<year>\d{4}) )?"
    r"(?P<clock>\d\d:\d\d:\d\d)(?: (?P<year_last>\d{4}))?\] ?(?P<text>.*)"
)
_SYSLOG = re.compile(r"(?:\w{3} +\d+ [\d:]{8}|\d{4}-\S{1,40}) \S{1,255} kernel: (?P<text>.*)")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_RECORD_BYTES = 16 << 10
_FILE_BYTES = 4 << 20
_TEXT_CHARACTERS = 1000
_MOST_AT_ONCE = 5000

Position = dict[str, int]
"""How far a log has been read: ``sequence`` of the ring, or ``inode`` and ``offset`` of a file."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a log.

    Attributes:
        seconds: on the log's own clock, from any start.
        wall_seconds: when it was written; when it was read, where the log does not tell.
    """

    text: str
    seconds: float
    wall_seconds: float


class Log(Protocol):
    """What can be read further from a position.

    Attributes:
        position: how far it has been read.
        lost: messages that were dropped before they could be read, since the start.
    """

    position: Position
    lost: int

    def read(self) -> Iterator[Message]:
        """The messages since the last call, a bounded number.

        Raises:
            OSError: the log cannot be read.
        """
        ...


def open_log(path: Path, position: Position) -> Log:
    """The log at a path: the kernel's ring when it is a device, else a plain file."""
    try:
        is_ring = stat.S_ISCHR(path.stat().st_mode)
    except OSError:
        is_ring = False
    return Ring(path, position) if is_ring else LogFile(path, position)


class Ring:
    """``/dev/kmsg``: one record a read, numbered by the kernel; gaps in the numbers are losses."""

    def __init__(
        self,
        path: Path,
        position: Position,
        read: Callable[[int, int], bytes] = os.read,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._read_record, self._clock = path, read, clock
        self._descriptor: int | None = None
        self.position, self.lost = dict(position), 0

    def read(self) -> Iterator[Message]:
        """The records after the last one read."""
        if self._descriptor is None:
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags)
        booted_seconds = self._clock() - time.monotonic()
        for _ in range(_MOST_AT_ONCE):
            try:
                record = self._read_record(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in {errno.EPIPE, errno.EINVAL}:  # overrun, or too long a record
                    continue
                raise
            if not record:
                break
            found = _RECORD.match(record.decode(errors="replace"))
            if found and self._is_new(int(found["sequence"])):
                seconds = int(found["micros"]) / 1e6
                yield Message(_cut(found["text"]), seconds, booted_seconds + seconds)

    def _is_new(self, sequence: int) -> bool:
        last = self.position.get("sequence")
        if last is not None and sequence <= last:
            return False
        if last is not None:
            self.lost += sequence - last - 1
        self.position["sequence"] = sequence
        return True


class LogFile:
    """A file that grows; one that was replaced or cut is read from its beginning."""

    def __init__(
        self, path: Path, position: Position, clock: Callable[[], float] = time.time
    ) -> None:
        self._path, self._clock = path, clock
        self.position, self.lost = dict(position), 0

    def read(self) -> Iterator[Message]:
        """The whole lines after the last one read."""
        with self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            offset = self.position.get("offset", 0)
            if self.position.get("inode") != status.st_ino or status.st_size < offset:
                offset = 0
            file.seek(offset)
            chunk = file.read(_FILE_BYTES)
        whole = chunk[: chunk.rfind(b"\n") + 1]
        if not whole and len(chunk) == _FILE_BYTES:
            whole = chunk  # one line without an end: nothing that a kernel writes
        now = self._clock()
        at = offset
        for line in whole.splitlines(keepends=True)[:_MOST_AT_ONCE]:
            at += len(line)
            self.position = {"inode": status.st_ino, "offset": at}
            yield parse_line(line.decode(errors="replace").rstrip("\r\n"), now)


def parse_line(line: str, now_seconds: float) -> Message:
    """A line of a log as a message.

    Args:
        line: a record of the kernel's ring, or a line of dmesg, syslog or the fabric manager.
        now_seconds: wall clock, for lines that do not tell theirs.
    """
    if found := _RECORD.match(line):
        return Message(_cut(found["text"]), int(found["micros"]) / 1e6, now_seconds)
    if found := _SYSLOG.match(line):
        line = found["text"]
    if found := _SINCE_BOOT.match(line):
        return Message(_cut(found["text"]), float(found["seconds"]), now_seconds)
    found = _DATED.match(line)
    seconds = _wall_seconds(found) if found else None
    if found and seconds is not None:
        return Message(_cut(found["text"]), seconds, seconds)
    return Message(_cut(line), now_seconds, now_seconds)


def _wall_seconds(found: re.Match[str]) -> float | None:
    """The local time that a line tells."""
    hour, minute, second = map(int, found["clock"].split(":"))
    year = found["year"] or found["year_last"]
    try:
        month = _MONTHS.index(found["month"]) + 1
        told = datetime(int(year), month, int(found["day"]), hour, minute, second)  # noqa: DTZ001  # logs tell local time
        return told.timestamp()
    except (ValueError, TypeError, OverflowError, OSError):
        return None


def _cut(text: str) -> str:
    return text.partition("\n")[0][:_TEXT_CHARACTERS]
