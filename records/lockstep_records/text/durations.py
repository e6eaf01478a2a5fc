"""Durations as people write them on a command line or in a file: ``500ms``, ``5s``, ``2m``, ``1h``.

One whole number and one unit; Prometheus reads the same spelling. Times as people read them.
"""

import re
from datetime import UTC, datetime

_DURATION = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
REMEDY = "write a whole number and ms, s, m, h or d, such as 500ms, 5s or 2m"
_RELATIVE = re.compile(r"(?:now)?-(\S+)")
_EPOCH = re.compile(r"[0-9]{9,14}(?:\.[0-9]{1,9})?")
# From here on a number of seconds is beyond the year 5000: it was written in milliseconds.
_FIRST_MILLISECONDS = 1e11
_TIME_REMEDY = (
    "write now, a time before now such as -15m, a date such as 2026-11-22T21:40:00Z,"
    " or seconds since 1970"
)


def parse_duration(text: str) -> float:
    """Seconds of a duration; ValueError where the text is not one number with one unit."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration; {REMEDY}")
    return int(match[1]) * _UNIT_SECONDS[match[2]]


def format_duration(seconds: float) -> str:
    """The shortest spelling, to the millisecond: ``90s``, ``2m``, ``500ms``; or ValueError."""
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"a duration of {seconds} s cannot be written; it must be 0 or more")
    # Integers, for divmod of floats such as 0.3 leaves a remainder.
    milliseconds = round(seconds * 1000)
    for unit, unit_seconds in reversed(_UNIT_SECONDS.items()):
        count, rest = divmod(milliseconds, round(unit_seconds * 1000))
        if count and not rest:
            return f"{count}{unit}"
    return "0s"


def format_time(seconds: float | None) -> str:
    """Seconds since 1970 in UTC, ``2026-11-22 21:40:05``; empty where they are not known."""
    return "" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


def parse_time(text: str, now: float) -> float:
    """Seconds since the epoch of ``now``, ``-15m``, ``now-15m``, an ISO 8601 date, or a number.

    A date without a zone is in UTC. A number from 100,000,000,000 on is in milliseconds. Any other
    text is a ValueError.
    """
    if text == "now":
        return now
    if match := _RELATIVE.fullmatch(text):
        try:
            return now - parse_duration(match[1])
        except ValueError:
            raise ValueError(f"{text!r} is not a time; {_TIME_REMEDY}") from None
    if _EPOCH.fullmatch(text):
        number = float(text)
        return number / 1000 if number >= _FIRST_MILLISECONDS else number
    try:
        date = datetime.fromisoformat(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a time; {_TIME_REMEDY}") from None
