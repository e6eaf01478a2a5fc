"""The clock of a log: puts local times, times with a zone and MLPerf's milliseconds on one axis."""

import re
from collections import Counter
from pathlib import Path

from lockstep_records.compressed import read_head
from lockstep_records.joblogs.prefix import Stamp, clean, find_stamp

# Offsets of time zones are multiples of a quarter of an hour.
_QUARTER_SECONDS = 900
_WINDOW_BYTES = 8192
_MOST_LINES = 64
_HEAD_BYTES = 262_144
_YEAR = re.compile(rb"(?<!\d)(20[0-4]\d)[-/][01]\d[-/][0-3]\d|\"time_ms\": ?(\d{10})\d{3}\b")
_SECONDS_A_YEAR = 31_556_952


class Clock:
    """Reads times, and estimates how far the local ones are ahead of UTC.

    Args:
        year: of times that leave it out.

    Attributes:
        last: time read last, in the order of the log.
    """

    def __init__(self, year: int) -> None:
        self._year = year
        self._quarters_ahead: Counter[int] = Counter()
        self._latest: dict[bool, Stamp] = {}
        self.last: Stamp | None = None

    @property
    def latest(self) -> Stamp | None:
        """The latest time read, among local times and those with a zone."""
        return max(self._latest.values(), key=lambda stamp: self.seconds(stamp) or 0, default=None)

    def parse(self, text: str) -> Stamp | None:
        """The time in a line; None where it has none."""
        stamp = find_stamp(text, self._year)
        if stamp is not None:
            self.observe(stamp)
        return stamp

    def observe(self, stamp: Stamp) -> None:
        """Takes note of a time; to be called in the order of the log."""
        previous, self.last = self.last, stamp
        latest = self._latest.get(stamp.zoned)
        if latest is None or stamp.seconds > latest.seconds:
            self._latest[stamp.zoned] = stamp
        # Only neighbours are of one moment: lines further apart say nothing about the zone.
        if previous is not None and previous.zoned != stamp.zoned:
            local, zoned = (previous, stamp) if stamp.zoned else (stamp, previous)
            self._quarters_ahead[round((local.seconds - zoned.seconds) / _QUARTER_SECONDS)] += 1

    def last_before(self, data: bytes, offset: int, floor: int) -> Stamp | None:
        """The last time in the lines before an offset and after ``floor``; else the last read."""
        window = data[max(floor, offset - _WINDOW_BYTES, 0) : offset]
        for line in reversed(window.splitlines()[-_MOST_LINES:]):
            if stamp := find_stamp(clean(line[:_WINDOW_BYTES]), self._year):
                self.observe(stamp)
                return stamp
        return self.last

    def first_in(self, data: bytes) -> Stamp | None:
        """The first time in the first 256 KiB of a log."""
        for line in data[:_HEAD_BYTES].splitlines():
            if stamp := find_stamp(clean(line), self._year):
                return stamp
        return None

    def seconds(self, stamp: Stamp | None) -> float | None:
        """A time on the common axis; local times are taken for UTC where nothing says otherwise."""
        if stamp is None:
            return None
        if stamp.zoned or not self._quarters_ahead:
            return stamp.seconds
        return stamp.seconds - self._quarters_ahead.most_common(1)[0][0] * _QUARTER_SECONDS


def year_of(path: Path) -> int:
    """The year of a log's own first date, else that of the file's last change."""
    head = read_head(path, _HEAD_BYTES)
    if match := _YEAR.search(head):
        year, seconds = match.groups()
        return int(year) if year else 1970 + int(seconds) // _SECONDS_A_YEAR
    return 1970 + int(path.stat().st_mtime) // _SECONDS_A_YEAR
