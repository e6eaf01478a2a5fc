"""The clock of a log: puts local times, times with a zone and MLPerf's milliseconds on one axis.

How far local times are ahead of UTC follows from moments that both clocks name, never from a vote.
Null assumption: the lines of a log come in the order of time. A line that is printed late breaks
it and only ever names too early a time, so that the latest time of a few lines is used for all.
"""

import re
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from lockstep_outcomes.joblogs.prefix import Stamp, clean, find_stamp, split_prefix
from lockstep_records.file_access.compressed import read_head

# Offsets of time zones are multiples of a quarter of an hour, from -12:00 to +14:00.
_QUARTER_SECONDS, _HOUR_SECONDS = 900, 3600
_LEAST_SECONDS, _MOST_SECONDS = -43_200, 50_400
# Clocks of whole seconds, and a pipe between the two writers.
_SLACK_SECONDS = 3.0
_FEW_LINES = 8  # after a change of clocks; one of them at least was not printed late
_MOST_BOUNDS = 4096


@dataclass(slots=True)
class _Run:
    """Lines in a row that name one kind of time: the latest up to them, and of their first few."""

    zoned: bool
    latest: float
    first_latest: float
    num_lines: int = 1
    starts_by_marker: bool = False
    ends_by_marker: bool = False


@dataclass(frozen=True, slots=True)
class _Bound:
    """The offset is at least ``seconds``, or at most that."""

    seconds: float
    is_lower: bool
    by_marker: bool
    is_thin: bool


@dataclass(slots=True)
class ZoneEstimate:
    """Takes the times of one log in its order, and gives the offset of the local ones."""

    _latest: dict[bool, float] = field(default_factory=dict)
    _runs: list[_Run] = field(default_factory=list)
    _exact: list[float] = field(default_factory=list)

    def add(self, stamp: Stamp) -> None:
        """Adds the next time of the log."""
        if stamp.pair_seconds is not None and len(self._exact) < _MOST_BOUNDS:
            self._exact.append(stamp.pair_seconds - stamp.seconds)
        latest = max(stamp.seconds, self._latest.get(stamp.zoned, stamp.seconds))
        self._latest[stamp.zoned] = latest
        run = self._runs[-1] if self._runs else None
        if run is not None and run.zoned == stamp.zoned:
            run.latest, run.ends_by_marker = latest, stamp.is_marker
            run.num_lines += 1
            if run.num_lines <= _FEW_LINES:
                run.first_latest = max(run.first_latest, stamp.seconds)
        elif len(self._runs) < _MOST_BOUNDS:
            self._runs.append(
                _Run(stamp.zoned, latest, stamp.seconds, 1, stamp.is_marker, stamp.is_marker)
            )

    def ahead_seconds(self) -> float | None:
        """Seconds by which local times are ahead of UTC; None where nothing shows it.

        Evidence in this order, the next only where there is none of the former: both clocks in one
        line; lines of scripts and managers that stand at a start or an end; the order of all lines.
        """
        if self._exact:
            typical = sorted(self._exact)[len(self._exact) // 2]
            return float(round(typical / _QUARTER_SECONDS) * _QUARTER_SECONDS)
        bounds = [_bound(before, after) for before, after in pairwise(self._runs)]
        thick = [bound for bound in bounds if not bound.is_thin]
        for chosen in ([b for b in bounds if b.by_marker], thick, bounds):
            if chosen:
                offset = _offset_within(chosen)
                if offset is not None:
                    return offset
        return None


def _bound(before: _Run, after: _Run) -> _Bound:
    """What the change of clocks from one run of lines to the next says about the offset."""
    local, zoned = (
        (after.first_latest, before.latest) if before.zoned else (before.latest, after.first_latest)
    )
    by_marker = after.starts_by_marker if before.zoned else before.ends_by_marker
    # One line between two of the other clock may be a late one.
    is_thin = min(before.num_lines, after.num_lines) == 1
    return _Bound(local - zoned, not before.zoned, by_marker, is_thin)


def _offset_within(bounds: list[_Bound]) -> float | None:
    """The offset within all bounds; whole hours before quarters, and as little idle as possible."""
    lowers = [bound.seconds for bound in bounds if bound.is_lower]
    uppers = [bound.seconds for bound in bounds if not bound.is_lower]
    low = max(lowers, default=float(_LEAST_SECONDS)) - _SLACK_SECONDS
    high = min(uppers, default=float(_MOST_SECONDS)) + _SLACK_SECONDS
    for unit in (_HOUR_SECONDS, _QUARTER_SECONDS):
        fitting = [
            offset
            for offset in range(_LEAST_SECONDS, _MOST_SECONDS + 1, unit)
            if low <= offset <= high
        ]
        if fitting:
            # Between the bounds nothing happened in the log, so the least of it is the likeliest.
            return float(fitting[-1] if uppers else fitting[0])
    return None


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
        """The time in a line, None where it has none; a sign of the job itself ``is_of_job``."""
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
