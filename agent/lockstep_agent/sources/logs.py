"""Logs as messages: the kernel's ring buffer, and files as dmesg and syslog write them."""

import errno
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

_RECORD = re.compile(
    r"(?P<priority>\d{1,10}),(?P<sequence>\d{1,18}),(?P<micros>\d{1,18}),[^;]*;(?P<text>.*)"
)
# What may stand before a message, stripped one after the other, each once.
_MONTH_DAY = r"(?P<month>[A-Z][a-z]{2}) {0,2}(?P<day>\d{1,2})"
_PREFIXES = tuple(
    (re.compile(expression), is_stamp)
    for expression, is_stamp in (
        (r"\[pod/[^\]]{1,300}\] ", False),
        (r"<(?P<pri>\d{1,3})>(?:1 )?", False),
        # ``dmesg --decode`` and Talos write facility and level
        (r"(?:[\w.:-]{1,255}: )?(?P<facility>[a-z0-9]{2,9}) *: ?[a-z]{2,7} *: ", False),
        (r"\[?(?P<iso>\d{4}-\d\d-\d\dT[\d:.,]{8,20}(?:Z|[+-]\d\d:?\d\d)?)\]?:? ", True),
        (rf"(?:(?P<year>\d{{4}}) )?{_MONTH_DAY} (?P<clock>\d\d:\d\d:\d\d)(?:\.\d{{1,9}})? ", True),
        # ``dmesg -T`` writes the year last, the fabric manager between day and time
        (
            (
                rf"\[(?:\w{{3}} )?{_MONTH_DAY} (?:(?P<year>\d{{4}}) )?(?P<clock>\d\d:\d\d:\d\d)"
                r"(?: (?P<year_last>\d{4}))?\] ?"
            ),
            True,
        ),
        # ``dmesg -H`` writes a minute, and then how much later each message came
        (rf"\[{_MONTH_DAY} (?P<clock>\d\d:\d\d)\] ?", True),
        (r"\[ *\+(?P<later>\d{1,8}\.\d{1,9})\] ?", True),
        (r"(?P<epoch>\d{10}\.\d{1,9}) ", True),
        (r"(?P<priority>\d{1,10}),\d{1,18},(?P<micros>\d{1,18}),[^;]*;", True),
        (r"[\w.-]{1,255} kernel(?:: | - - - )", False),
        (r"\[ *(?P<seconds>\d{1,10}\.\d{1,9})\] ?(?:\[ *[TC]\d{1,10}\] ?)?", True),
        (r"[\w.-]{1,255} kernel: ", False),
        (r"message repeated \d{1,9} times: \[ ", False),
    )
)
# journalctl -o json
_JSON_KERNEL = re.compile(r'"SYSLOG_IDENTIFIER" ?: ?"kernel"|"_TRANSPORT" ?: ?"kernel"')
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
        unknown: lines since the start that have no stamp of a kind that is known, the first of
            them as ``first_unknown``.
    """

    position: Position
    lost: int
    unknown: int
    first_unknown: str

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
                self.first_unknown = self.first_unknown or _truncate(text)
            if message is not None:
                yield message


def parse_line(line: str, now_seconds: float) -> Message | None:
    """A line of a log as a message; None for one that a process wrote into the kernel's log."""
    return read_line(line, now_seconds)[0]


def read_line(
    line: str, now_seconds: float, before: Message | None = None
) -> tuple[Message | None, bool]:
    """A line of a log as a message, and whether its stamp is known.

    Args:
        line: a record of the kernel's ring, or a line of dmesg, journalctl, syslog, the fabric
            manager, or a container's log of one of these.
        now_seconds: wall clock, for lines without a time.
        before: the message before it, for a stamp that tells how much later it came.
    """
    if line.startswith("{"):
        return _read_json(line, now_seconds)
    found: dict[str, str] = {}
    end, is_known = 0, False
    for prefix, is_stamp in _PREFIXES:
        if match := prefix.match(line, end):
            found |= {name: value for name, value in match.groupdict().items() if value}
            end, is_known = match.end(), is_known or is_stamp
    is_foreign = (
        int(found.get("pri", 0)) >= _USER_PRIORITY or found.get("facility", "kern") != "kern"
    )
    if is_foreign or int(found.get("priority", 0)) >= _USER_PRIORITY:
        return None, True
    wall_seconds = _wall_seconds(found, now_seconds)
    if "later" in found and before is not None:
        wall_seconds = before.wall_seconds + float(found["later"])
    moment = now_seconds if wall_seconds is None else wall_seconds
    # Some lines of a log have both clocks, and some the wall's alone.
    seconds = moment if before is None else before.seconds + moment - before.wall_seconds
    seconds = float(found["seconds"]) if "seconds" in found else seconds
    seconds = int(found["micros"]) / 1e6 if "micros" in found else seconds
    return Message(_truncate(line[end:]), seconds, moment), is_known


def _read_json(line: str, now_seconds: float) -> tuple[Message | None, bool]:
    """A line of ``journalctl -o json``."""
    try:
        entry = json.loads(line)
        text, micros = str(entry["MESSAGE"]), int(entry["__REALTIME_TIMESTAMP"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return Message(_truncate(line), now_seconds, now_seconds), False
    if not _JSON_KERNEL.search(line):
        return None, True
    return Message(_truncate(text), micros / 1e6, micros / 1e6), True


def _wall_seconds(found: Mapping[str, str], now_seconds: float) -> float | None:
    """The wall clock of a stamp's parts; None where they name no moment."""
    if "iso" in found:
        return _iso_seconds(found["iso"])
    if "epoch" in found:
        return float(found["epoch"])
    try:
        hour, minute, second = (*map(int, found["clock"].split(":")), 0)[:3]
        month, day = _MONTHS.index(found["month"]) + 1, int(found["day"])
        stated = found.get("year") or found.get("year_last")
        this_year = datetime.fromtimestamp(now_seconds).year  # noqa: DTZ006  # logs have local time
        # Without a year it is the latest one that is not in the future.
        for year in (int(stated),) if stated else (this_year, this_year - 1):
            local = datetime(year, month, day, hour, minute, second)  # noqa: DTZ001  # as above
            if stated or local.timestamp() <= now_seconds + _DAY_SECONDS:
                return local.timestamp()
    except (KeyError, ValueError, TypeError, OverflowError, OSError):
        return None
    return None


def _iso_seconds(text: str) -> float | None:
    """Seconds of a stamp in ISO 8601, local without a zone; None for an impossible one."""
    # dmesg writes a comma before the fraction, journalctl no colon in the zone
    spelled = _ISO_OFFSET.sub(r"\1:\2", text.replace(",", "."))
    try:
        return datetime.fromisoformat(spelled).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _truncate(text: str) -> str:
    # records of /dev/kmsg continue with lines of KEY=value, which are no part of the message
    return text.partition("\n")[0][:_MAX_CHARACTERS]
