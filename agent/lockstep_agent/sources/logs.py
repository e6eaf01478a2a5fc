"""Logs as messages: the kernel's ring buffer, and files as dmesg and syslog write them."""

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

_RECORD = re.compile(
    r"(?P<priority>\d{1,10}),(?P<sequence>\d{1,18}),(?P<micros>\d{1,18}),[^;]*;(?P<text>.*)"
)
_SINCE_BOOT = re.compile(
    r"\[ *(?P<seconds>\d{1,10}\.\d{1,9})\] ?(?:\[ *[TC]\d{1,10}\] ?)?(?P<text>.*)"
)
_DATED = re.compile(
    r"\[(?:\w{3} )?(?P<month>\w{3}) +(?P<day>\d{1,2}) (?:(?P<year>\d{4}) )?"
    r"(?P<clock>\d\d:\d\d:\d\d)(?: (?P<year_last>\d{4}))?\] ?(?P<text>.*)"
)
_SYSLOG = re.compile(
    r"(?:(?P<month>\w{3}) +(?P<day>\d{1,2}) (?P<clock>\d\d:\d\d:\d\d)(?:\.\d{1,9})?"
    r"|(?P<iso>\d{4}-\S{1,40})) \S{1,255} kernel: (?P<text>.*)"
)
# ``dmesg --time-format iso``; ``--decode`` writes facility and level before it.
_LEVELLED = re.compile(r"(?P<facility>[a-z0-9]{2,9}) *:[a-z]{2,7} *: (?P<text>.*)")
_ISO = re.compile(r"(?P<iso>\d{4}-\d\d-\d\dT\S{8,30}) (?P<text>.*)")
_ISO_OFFSET = re.compile(r"([+-]\d\d)(\d\d)$")
_DAY_SECONDS = 86_400.0
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_RECORD_BYTES = 16 << 10
_FILE_BYTES = 4 << 20
_MAX_LINE_BYTES = 32 << 10
_MAX_CHARACTERS = 1000
_MAX_MESSAGES = 5000
_USER_PRIORITY = 8  # the kernel gives it, or a higher one, to whatever a process writes

Position = dict[str, int]
"""How far a log was read: ``sequence`` of the ring, or ``inode`` and ``offset`` of a file."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a log.

    Attributes:
        text: without time and origin.
        seconds: on the log's own clock, whose zero is arbitrary.
        wall_seconds: wall clock of the writing; of the reading for a log without wall-clock times.
    """

    text: str
    seconds: float
    wall_seconds: float


class Log(Protocol):
    """A log that is read on from a position.

    Attributes:
        position: how far the log was read.
        lost: messages since the start that were overwritten before they were read.
    """

    position: Position
    lost: int

    def read(self) -> Iterator[Message]:
        """The messages since the last call, at most 5,000.

        Raises:
            OSError: the log cannot be read.
        """
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
        self,
        path: Path,
        position: Position,
        read_record: Callable[[int, int], bytes] = os.read,
    ) -> None:
        self._path, self._read_record = path, read_record
        self._descriptor: int | None = None
        self.position, self.lost = dict(position), 0

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
            match = _RECORD.match(record.decode(errors="replace"))
            if match is None or not self._is_new(int(match["sequence"])):
                continue
            if int(match["priority"]) < _USER_PRIORITY:
                seconds = int(match["micros"]) / 1e6
                yield Message(_truncate(match["text"]), seconds, booted_seconds + seconds)

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
        self.position, self.lost = dict(position), 0

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
            if (message := parse_line(text, now)) is not None:
                yield message


def parse_line(line: str, now_seconds: float) -> Message | None:
    """A line of a log as a message; None for one that a process wrote into the kernel's log.

    Args:
        line: a record of the kernel's ring, or a line of dmesg, syslog or the fabric manager.
        now_seconds: wall clock, for lines without a time.
    """
    if match := _RECORD.match(line):
        if int(match["priority"]) >= _USER_PRIORITY:
            return None
        return Message(_truncate(match["text"]), int(match["micros"]) / 1e6, now_seconds)
    wall_seconds = None
    if match := _LEVELLED.match(line):
        if match["facility"] != "kern":
            return None
        line = match["text"]
    if match := _SYSLOG.match(line):
        line, iso = match["text"], match["iso"]
        wall_seconds = _iso_seconds(iso) if iso else _undated_seconds(match, now_seconds)
    elif match := _ISO.match(line):
        line, wall_seconds = match["text"], _iso_seconds(match["iso"])
    if match := _SINCE_BOOT.match(line):
        moment = now_seconds if wall_seconds is None else wall_seconds
        return Message(_truncate(match["text"]), float(match["seconds"]), moment)
    match = _DATED.match(line)
    seconds = _wall_seconds(match) if match else None
    if match and seconds is not None:
        return Message(_truncate(match["text"]), seconds, seconds)
    moment = now_seconds if wall_seconds is None else wall_seconds
    return Message(_truncate(line), moment, moment)


def _iso_seconds(text: str) -> float | None:
    """Seconds of a stamp in ISO 8601, local without a zone; None for an impossible one."""
    # dmesg writes a comma before the fraction, journalctl no colon in the zone
    spelled = _ISO_OFFSET.sub(r"\1:\2", text.replace(",", "."))
    try:
        return datetime.fromisoformat(spelled).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _undated_seconds(match: re.Match[str], now_seconds: float) -> float | None:
    """Seconds of syslog's stamp, which has no year: the latest one that is not in the future."""
    try:
        hour, minute, second = map(int, match["clock"].split(":"))
        month, day = _MONTHS.index(match["month"]) + 1, int(match["day"])
        this_year = datetime.fromtimestamp(now_seconds).year  # noqa: DTZ006  # logs have local time
        for year in (this_year, this_year - 1):
            local = datetime(year, month, day, hour, minute, second)  # noqa: DTZ001  # as above
            if local.timestamp() <= now_seconds + _DAY_SECONDS:
                return local.timestamp()
    except (ValueError, TypeError, OverflowError, OSError):
        return None
    return None


def _wall_seconds(match: re.Match[str]) -> float | None:
    """The local time of a dated line; None for an impossible date."""
    hour, minute, second = map(int, match["clock"].split(":"))
    # ``dmesg -T`` writes the year last, the fabric manager between day and time
    year = match["year"] or match["year_last"]
    try:
        month = _MONTHS.index(match["month"]) + 1
        local = datetime(int(year), month, int(match["day"]), hour, minute, second)  # noqa: DTZ001  # logs have local time
        return local.timestamp()
    except (ValueError, TypeError, OverflowError, OSError):
        return None


def _truncate(text: str) -> str:
    # records of /dev/kmsg continue with lines of KEY=value, which are no part of the message
    return text.partition("\n")[0][:_MAX_CHARACTERS]
