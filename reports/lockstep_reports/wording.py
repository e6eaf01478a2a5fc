"""Figures as text: durations, shares, clock times and counts, and text of others made safe."""

import math
from collections.abc import Sequence

from lockstep_records.text.durations import format_time
from lockstep_records.text.printable import printable

UNKNOWN = "unknown"
_MAX_NAMED_RANKS = 8
_TENTHS_LIMIT = 0.0995
# Upper limit in seconds, seconds of the unit, format.
_UNITS = (
    (1e-3, 1e-6, "{:.0f} µs"),
    (1.0, 1e-3, "{:.3g} ms"),
    (120.0, 1.0, "{:.3g} s"),
    (7200.0, 60.0, "{:.1f} min"),
    (math.inf, 3600.0, "{:,.1f} h"),
)


def duration(seconds: float | None) -> str:
    """A duration with three digits and its unit, from µs to h; ``unknown`` for None and NaN."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds == 0:
        return "0 s"
    size = abs(seconds)
    unit, template = next((unit, template) for limit, unit, template in _UNITS if size < limit)
    return template.format(seconds / unit)


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds, without the unit, for a column of a table."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    return f"{seconds * 1e3:,.1f}"


def percent(ratio: float | None) -> str:
    """A ratio as a percentage."""
    if ratio is None or not math.isfinite(ratio):
        return UNKNOWN
    return f"{ratio:.1%}" if abs(ratio) < _TENTHS_LIMIT else f"{ratio:.0%}"


def clock(wall_seconds: float | None) -> str:
    """A wall clock time in UTC, to the second; ``unknown`` for None and NaN."""
    if wall_seconds is None or not math.isfinite(wall_seconds):
        return UNKNOWN
    return format_time(wall_seconds)


def plural(count: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def list_ranks(ranks: Sequence[int]) -> str:
    """The first eight ranks, with dots for more."""
    more = ", ..." if len(ranks) > _MAX_NAMED_RANKS else ""
    return ", ".join(map(str, ranks[:_MAX_NAMED_RANKS])) + more


def printable_lines(text: str) -> str:
    """Text of several lines with their indentation, each line made printable."""
    return "\n".join(
        " " * (len(line) - len(line.lstrip(" "))) + printable(line) for line in text.split("\n")
    )


def escaped(text: str) -> str:
    """Text from a record as plain text of Markdown, without control characters."""
    text = printable(text)
    for letter in "\\`*_|<>[]#":
        text = text.replace(letter, f"\\{letter}")
    return text
