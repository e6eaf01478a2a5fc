"""Office hours and maintenance windows, as Alertmanager's time intervals."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from lockstep_alerts.reading.entry import Entry

UTC = "UTC"
_DAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_HOURS = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-(([01][0-9]|2[0-3]):([0-5][0-9])|24:00)$")
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}$")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,40}$")
_LONGEST = timedelta(days=92)
_WEEKLY = ("days", "hours")
_ONCE = ("from", "to")
MUTES = ("page", "ticket", "all")

Interval = dict[str, object]


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeWindow:
    """A named time in which something is notified, or is not: Alertmanager's, and its zone."""

    name: str
    intervals: tuple[Interval, ...]
    time_zone: str

    def content(self) -> dict[str, object]:
        """The entry of Alertmanager's ``time_intervals``."""
        return {
            "name": self.name,
            "time_intervals": [{**each, "location": self.time_zone} for each in self.intervals],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Maintenance:
    """A time in which what it ``mutes`` (page, ticket, all) waits, of one cluster or of all."""

    window: TimeWindow
    mutes: str
    cluster: str | None

    def concerns(self, use: str, cluster: str | None) -> bool:
        """Whether notifications of this use wait; ``cluster`` None is what no route names."""
        return self.mutes in (use, "all") and self.cluster in (None, cluster)


@dataclass(frozen=True, kw_only=True, slots=True)
class OfficeHours:
    """Hours in which tickets are notified: days from 0, sunday, in order; seconds of the day."""

    window: TimeWindow
    days: tuple[int, ...]
    begin: int
    end: int


def read_office_hours(entry: Entry) -> OfficeHours:
    """The hours in which tickets are notified; SpecError where a day, hour or zone is none."""
    entry.check_keys(("time_zone", *_WEEKLY), ())
    days: set[int] = set()
    weekly = (_weekly(entry),)
    for part in entry.text("days").lower().split(","):
        first, _, last = part.strip().partition(":")
        days |= set(range(_DAYS.index(first), _DAYS.index(last or first) + 1))
    begin, end = (
        3600 * int(hour) + 60 * int(minute)
        for hour, minute in (text.split(":") for text in entry.text("hours").split("-"))
    )
    window = TimeWindow(name="office-hours", intervals=weekly, time_zone=_time_zone(entry))
    return OfficeHours(window=window, days=tuple(sorted(days)), begin=begin, end=end)


def read_maintenance(entry: Entry) -> Maintenance:
    """A maintenance window, by ``from`` and ``to``, or weekly, by days and hours; or SpecError."""
    entry.check_keys(("name",), ("time_zone", "mutes", "cluster", *_WEEKLY, *_ONCE))
    name = entry.text("name", _NAME, "write small letters, digits and dashes")
    present = tuple(field for field in (*_WEEKLY, *_ONCE) if entry.has(field))
    if present not in (_WEEKLY, _ONCE):
        raise entry.refuse("name", "write either from and to, or days and hours")
    return Maintenance(
        window=TimeWindow(
            name=f"maintenance-{name}",
            intervals=(_weekly(entry),) if present == _WEEKLY else tuple(_once(entry)),
            time_zone=_time_zone(entry) if entry.has("time_zone") else UTC,
        ),
        mutes=entry.choice("mutes", *MUTES) if entry.has("mutes") else "all",
        cluster=entry.text("cluster") if entry.has("cluster") else None,
    )


def _time_zone(entry: Entry) -> str:
    name = entry.text("time_zone")
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:
        raise entry.refuse(
            "time_zone", "is not a time zone; write one such as Europe/Berlin or UTC"
        ) from error
    return name


def _weekly(entry: Entry) -> Interval:
    days = [_days(entry, part) for part in entry.text("days").lower().split(",")]
    begin, _, end = entry.text(
        "hours", _HOURS, "write hours such as 09:00-17:00, at most to 24:00"
    ).partition("-")
    if end <= begin:
        raise entry.refuse("hours", "must end after they begin; split them at 24:00")
    return {"weekdays": days, "times": [{"start_time": begin, "end_time": end}]}


def _days(entry: Entry, part: str) -> str:
    first, separator, last = part.strip().partition(":")
    if first not in _DAYS or (separator and last not in _DAYS):
        raise entry.refuse("days", "write days such as monday:friday or saturday, sunday")
    if separator and _DAYS.index(last) < _DAYS.index(first):
        raise entry.refuse("days", f"a week begins on sunday: write {last}, {first} apart")
    return part.strip()


def _once(entry: Entry) -> Iterator[Interval]:
    """One interval for each day of the window: Alertmanager knows no time with a date."""
    begin, end = _moment(entry, "from"), _moment(entry, "to")
    if not begin < end <= begin + _LONGEST:
        raise entry.refuse("to", f"must be after from and at most {_LONGEST.days} days later")
    day = begin.date()
    while datetime.combine(day, time()) < end:
        first = begin.strftime("%H:%M") if day == begin.date() else "00:00"
        last = end.strftime("%H:%M") if day == end.date() else "24:00"
        date = {"years": [f"{day.year}"], "months": [f"{day.month}"]}
        times = {"start_time": first, "end_time": last}
        yield {**date, "days_of_month": [f"{day.day}"], "times": [times]}
        day += timedelta(days=1)


def _moment(entry: Entry, field: str) -> datetime:
    remedy = "write a time such as 2026-12-03T06:00, in time_zone"
    text = entry.text(field, _MOMENT, remedy)
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise entry.refuse(field, remedy) from error
