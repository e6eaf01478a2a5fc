"""The window of a snapshot: two times as people write them, and the step between two points."""

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from lockstep_records.shared.durations import format_time, parse_duration

_POINTS = 240  # a panel is 300 to 1,400 pixels wide
_SCRAPES_IN_A_RATE = 4
_RELATIVE = re.compile(r"(?:now)?-(\S+)")
_EPOCH = re.compile(r"[0-9]{9,14}(?:\.[0-9]{1,9})?")
# From here on a number of seconds is beyond the year 5000: it was written in milliseconds.
_FIRST_MILLISECONDS = 1e11
_REMEDY = (
    "write now, a time before now such as -15m, a date such as 2026-11-22T21:40:00Z,"
    " or seconds since 1970"
)


def parse_time(text: str, now: float) -> float:
    """Seconds since the epoch of ``now``, ``-15m``, ``now-15m``, an ISO 8601 date, or a number.

    A date without a zone is in UTC. A number from 100,000,000,000 on is in milliseconds.

    Raises:
        ValueError: the text is none of these.
    """
    if text == "now":
        return now
    if match := _RELATIVE.fullmatch(text):
        try:
            return now - parse_duration(match[1])
        except ValueError:
            raise ValueError(f"{text!r} is not a time; {_REMEDY}") from None
    if _EPOCH.fullmatch(text):
        number = float(text)
        return number / 1000 if number >= _FIRST_MILLISECONDS else number
    try:
        date = datetime.fromisoformat(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a time; {_REMEDY}") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """From when to when a board is drawn.

    Attributes:
        begin: seconds since the epoch, a whole number of steps.
        end: seconds since the epoch.
        step_seconds: time between two points of a query over the window.
        scrape_seconds: time between two scrapes; rates reach over four of them.
    """

    begin: float
    end: float
    step_seconds: float
    scrape_seconds: float

    @classmethod
    def of(cls, begin: float, end: float, scrape_seconds: float) -> "Window":
        """The window from ``begin`` to ``end``; points are at least one scrape apart.

        Raises:
            ValueError: the window ends before it begins.
        """
        if not begin < end:
            raise ValueError(
                f"the window ends at {format_time(end)} and begins at {format_time(begin)};"
                " it must end later"
            )
        step_seconds = float(max(math.ceil((end - begin) / _POINTS), math.ceil(scrape_seconds)))
        # As Grafana does: the points of two windows that overlap are the same points.
        aligned = math.floor(begin / step_seconds) * step_seconds
        return cls(begin=aligned, end=end, step_seconds=step_seconds, scrape_seconds=scrape_seconds)

    @property
    def text(self) -> str:
        """Its begin and end for people."""
        return f"between {format_time(self.begin)} and {format_time(self.end)} UTC"

    @property
    def num_points(self) -> int:
        """Number of points of a query over the window."""
        return math.floor((self.end - self.begin) / self.step_seconds) + 1

    @property
    def last(self) -> float:
        """Time of the last point, in seconds since the epoch."""
        return self.begin + (self.num_points - 1) * self.step_seconds

    def index(self, seconds: float) -> int:
        """The number of the point at a time; outside the window below 0 or beyond the last."""
        return round((seconds - self.begin) / self.step_seconds)

    @property
    def rate_seconds(self) -> float:
        """What Grafana calls ``$__rate_interval``: four scrapes, and more between distant points.

        Source: <https://grafana.com/docs/grafana/latest/datasources/prometheus/template-variables/>
        """
        scrapes = _SCRAPES_IN_A_RATE * self.scrape_seconds
        return max(self.step_seconds + self.scrape_seconds, scrapes)

    @property
    def built_in(self) -> dict[str, str]:
        """Grafana's variables of time by their name without the dollar."""
        range_seconds = math.ceil(self.end - self.begin)
        return {
            "__rate_interval": f"{math.ceil(self.rate_seconds)}s",
            "__interval": f"{math.ceil(self.step_seconds)}s",
            "__interval_ms": f"{math.ceil(self.step_seconds * 1000)}",
            "__range": f"{range_seconds}s",
            "__range_s": f"{range_seconds}",
            "__range_ms": f"{range_seconds * 1000}",
            "__from": f"{self.begin * 1000:.0f}",
            "__to": f"{self.end * 1000:.0f}",
        }
