"""Days and months of a time zone; a day has 23 or 25 hours where clocks change."""

from collections.abc import Iterator
from datetime import date, datetime, time, timedelta, tzinfo

_DAY = timedelta(days=1)
_MOST_DAYS = 400
# Of days and weeks that are asked for; arithmetic beyond them leaves the calendar.
KNOWN_YEARS = range(1970, 9999)


def parse_month(text: str) -> date:
    """The first day of a month such as 2026-10; ValueError for any other text."""
    try:
        return _known_day(f"{text}-01")
    except ValueError as error:
        raise ValueError(f"{text!r:.80} is not a month; write year and month as 2026-10") from error


def _known_day(text: str) -> date:
    day = date.fromisoformat(text)
    if day.year not in KNOWN_YEARS:
        raise ValueError(f"{day} is before {KNOWN_YEARS[0]} or after {KNOWN_YEARS[-1]}")
    return day


def read_range(
    month: str | None, first: str | None, last: str | None, today: date
) -> tuple[date, date]:
    """First and last day of a month, by default the one that runs, or a range; or ValueError."""
    if month:
        if first or last:
            raise ValueError(f"month {month} and a range are both given; give one of them")
        return parse_month(month), last_day(parse_month(month))
    try:
        begin = _known_day(first) if first else today.replace(day=1)
        end = _known_day(last) if last else last_day(begin)
    except ValueError as error:
        raise ValueError(
            f"{first or ''!r:.80} to {last or ''!r:.80} are not days; write them as 2026-10-05"
        ) from error
    if not 0 <= (end - begin).days < _MOST_DAYS:
        raise ValueError(f"from {begin} to {end} must be 1 to {_MOST_DAYS} days")
    return begin, end


def last_day(day: date) -> date:
    """The last day of the month of a day."""
    return (day.replace(day=28) + 4 * _DAY).replace(day=1) - _DAY


def day_of(seconds: float, zone: tzinfo) -> date:
    """The day on which a moment is."""
    return datetime.fromtimestamp(seconds, zone).date()


def begin_of(day: date, zone: tzinfo) -> float:
    """The moment at which a day begins, seconds since 1970."""
    return datetime.combine(day, time.min, zone).timestamp()


def end_of(day: date, zone: tzinfo) -> float:
    """The moment at which a day ends."""
    return begin_of(day + _DAY, zone)


def split_days(begin: float, end: float, zone: tzinfo) -> Iterator[tuple[date, float, float]]:
    """Day, begin and end of each part of a period; nothing where it ends before its begin."""
    while begin < end:
        day = day_of(begin, zone)
        part_end = min(end, end_of(day, zone))
        yield day, begin, part_end
        begin = part_end
