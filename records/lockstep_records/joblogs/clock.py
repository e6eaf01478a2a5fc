"""The clock of a log: local times, times with a zone and MLPerf's milliseconds on one axis."""

import re
from collections import Counter
from pathlib import Path

from lockstep_records.joblogs.compressed import head_of
from lockstep_records.joblogs.prefix import Stamp, clean, find_stamp

_QUARTER = 900
_BACK = 8192
_MOST_LINES = 64
_HEAD = 262_144
_YEAR = re.compile(rb"(?<!\d)(20[0-4]\d)[-/][01]\d[-/][0-3]\d|\"time_ms\": ?(\d{10})\d{3}\b")
_SECONDS_A_YEAR = 31_556_952


class Clock:
    """Reads times and learns how far the local ones are from UTC."""

    def __init__(self, year: int) -> None:
        self._year = year
        self._ahead: Counter[int] = Counter()
        self._latest: dict[bool, Stamp] = {}
        self.last: Stamp | None = None

    @property
    def latest(self) -> Stamp | None:
        """The latest time seen, of local times and those with a zone."""
        return max(self._latest.values(), key=lambda stamp: self.seconds(stamp) or 0, default=None)

    def of(self, text: str) -> Stamp | None:
        """The time that a line tells."""
        stamp = find_stamp(text, self._year)
        if stamp is not None:
            self.see(stamp)
        return stamp

    def see(self, stamp: Stamp) -> None:
        """Takes note of a time, in the order of the log."""
        before, self.last = self.last, stamp
        latest = self._latest.get(stamp.zoned)
        if latest is None or stamp.seconds > latest.seconds:
            self._latest[stamp.zoned] = stamp
        # Only neighbours are of one moment: long after a local time, another tells nothing of it.
        if before is not None and before.zoned != stamp.zoned:
            local, zoned = (before, stamp) if stamp.zoned else (stamp, before)
            self._ahead[round((local.seconds - zoned.seconds) / _QUARTER)] += 1

    def before(self, data: bytes, place: int, floor: int) -> Stamp | None:
        """The last time in the lines before a place, not before ``floor``; else the last seen."""
        window = data[max(floor, place - _BACK, 0) : place]
        for line in reversed(window.splitlines()[-_MOST_LINES:]):
            if stamp := find_stamp(clean(line[:_BACK]), self._year):
                self.see(stamp)
                return stamp
        return self.last

    def first_in(self, data: bytes) -> Stamp | None:
        """The first time in the beginning of a log."""
        for line in data[:_HEAD].splitlines():
            if stamp := find_stamp(clean(line), self._year):
                return stamp
        return None

    def seconds(self, stamp: Stamp | None) -> float | None:
        """A time on the common axis; local times are taken for UTC where nothing tells more."""
        if stamp is None:
            return None
        if stamp.zoned or not self._ahead:
            return stamp.seconds
        return stamp.seconds - self._ahead.most_common(1)[0][0] * _QUARTER


def year_of(path: Path) -> int:
    """The year that a log's own dates tell, else that of its last change."""
    head = head_of(path, _HEAD)
    if match := _YEAR.search(head):
        year, seconds = match.groups()
        return int(year) if year else 1970 + int(seconds) // _SECONDS_A_YEAR
    return 1970 + int(path.stat().st_mtime) // _SECONDS_A_YEAR
