"""The clock of a log: puts local times, times with a zone and MLPerf's milliseconds on one axis."""

import re
from pathlib import Path

from lockstep_outcomes.joblogs.reading.prefix import Stamp, clean, find_stamp, split_prefix
from lockstep_outcomes.joblogs.reading.zone import ZoneEstimate
from lockstep_records.file_access.compressed import read_head

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
        shared_ahead_seconds: offset by the job's other files, for a file that shows none itself.
    """

    def __init__(self, year: int) -> None:
        self._year = year
        self._zone = ZoneEstimate()
        self._ahead: float | None = None
        self._latest: dict[bool, Stamp] = {}
        self.last: Stamp | None = None
        self.shared_ahead_seconds: float | None = None

    @property
    def latest(self) -> Stamp | None:
        """The latest time read, among local times and those with a zone."""
        return max(self._latest.values(), key=lambda stamp: self.seconds(stamp) or 0, default=None)

    @property
    def ahead_seconds(self) -> float | None:
        """Seconds by which this log's local times are ahead of UTC; None where it shows none."""
        if self._ahead is None:
            self._ahead = self._zone.ahead_seconds()
        return self._ahead

    @property
    def is_mixed(self) -> bool:
        """Whether the log holds local times and times with a zone, and nothing relates them."""
        return len(self._latest) > 1 and self.ahead_seconds is None

    def parse(self, text: str, *, is_of_job: bool = True) -> Stamp | None:
        """The time in a line; None where it has none.

        Args:
            text: the line.
            is_of_job: whether it is a sign of the job's life, and not of one who watches it.
        """
        stamp = find_stamp(text, self._year)
        if stamp is not None and is_of_job:
            self.observe(stamp)
        return stamp

    def observe(self, stamp: Stamp) -> None:
        """Takes note of a time; to be called in the order of the log."""
        self.last, self._ahead = stamp, None
        latest = self._latest.get(stamp.zoned)
        if latest is None or stamp.seconds > latest.seconds:
            self._latest[stamp.zoned] = stamp
        self._zone.add(stamp)

    def last_before(self, data: bytes, offset: int, floor: int) -> Stamp | None:
        """The last time in the lines before an offset and after ``floor``; else the last read."""
        window = data[max(floor, offset - _WINDOW_BYTES, 0) : offset]
        for line in reversed(window.splitlines()[-_MOST_LINES:]):
            if stamp := find_stamp(clean(line[:_WINDOW_BYTES]), self._year):
                self.observe(stamp)
                return stamp
        return self.last

    def first_in(self, data: bytes, *, skipped: re.Pattern[str]) -> Stamp | None:
        """The first time in the first 256 KiB of a log; lines that watch the job are skipped."""
        for line in data[:_HEAD_BYTES].splitlines():
            text = clean(line)
            stamp = find_stamp(text, self._year)
            if stamp is not None and not skipped.search(split_prefix(text)[1]):
                return stamp
        return None

    def seconds(self, stamp: Stamp | None) -> float | None:
        """A time on the common axis.

        Local times are taken for UTC where the log has no other; where it has both and nothing
        relates them, local ones are unknown.
        """
        if stamp is None or (not stamp.zoned and self.is_mixed):
            return None
        if stamp.zoned:
            return stamp.seconds
        ahead = self.ahead_seconds
        return stamp.seconds - (ahead if ahead is not None else self.shared_ahead_seconds or 0.0)


def year_of(path: Path) -> int:
    """The year of a log's own first date, else that of the file's last change."""
    head = read_head(path, _HEAD_BYTES)
    if match := _YEAR.search(head):
        year, seconds = match.groups()
        return int(year) if year else 1970 + int(seconds) // _SECONDS_A_YEAR
    return 1970 + int(path.stat().st_mtime) // _SECONDS_A_YEAR
