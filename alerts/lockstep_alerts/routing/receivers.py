"""Kinds of receivers: the fields of each, what Alertmanager is given, and when."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from lockstep_alerts.reading.entry import Entry, Fields, SpecError, load, read_quantities
from lockstep_alerts.reading.model import Delivery, Duration
from lockstep_alerts.reading.overlay import SECTIONS
from lockstep_cli.options import read_address

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


_SUMMARIES = "{{ range .Alerts }}{{ .Annotations.summary }}. {{ end }}"
_TITLE = "{{ .Status }} {{ range .GroupLabels.SortedPairs }}{{ .Name }}={{ .Value }} {{ end }}"
_TEXT = (
    "{{ range .Alerts }}*{{ .Labels.alertname }}* {{ .Annotations.description }}\n"
    "{{ .Annotations.runbook_url }} {{ .Annotations.dashboard_url }}\n{{ end }}"
)
_MAILS = re.compile(r"[^@\s,]+@[^@\s,]+(, [^@\s,]+@[^@\s,]+)*$")
_VERSION = re.compile(r"0\.([0-9]{2})$")
_OLDEST = 25
_NEWER = {"url_file": 26}
"""Fields that need an Alertmanager newer than 0.25: the digits after 0."""

Settings = Mapping[str, str]
Content = dict[str, object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """What a receiver is for: the severity and priority it passes on."""

    severity: str
    priority: str


USES = {
    "page": Use(severity="critical", priority="P1"),
    "ticket": Use(severity="warning", priority="P3"),
    "owners": Use(severity="warning", priority="P3"),
    "watchdog": Use(severity="info", priority="P5"),
}


def _url(entry: Entry, name: str) -> str:
    text = entry.text(name)
    address = urlsplit(text)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise entry.refuse(name, "write an address such as https://host/path")
    if address.username or address.query:
        raise entry.refuse_secret(name, "holds a secret; put it into a file, by url_file")
    return text


def _smarthost(entry: Entry, name: str) -> str:
    text = entry.text(name)
    try:
        read_address(text)
    except ValueError as error:
        raise entry.refuse(name, str(error)) from error
    return text


def _mails(entry: Entry, name: str) -> str:
    return entry.text(name, _MAILS, "write an address such as team@example.org")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind of receiver.

    Attributes:
        required: fields that must be there; names that end in ``_file`` are secrets.
        content: what the entry of Alertmanager's list has besides the fields.
        alternatives: of these fields exactly one must be there.
    """

    key: str
    required: tuple[str, ...] = ()
    content: Callable[[Use], Content]
    optional: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    read: Mapping[str, Callable[[Entry, str], str]] = field(default_factory=dict)


KINDS = {
    "pagerduty": Kind(
        key="pagerduty_configs",
        required=("routing_key_file",),
        optional=("url",),
        content=lambda use: {"description": _SUMMARIES, "severity": use.severity},
        read={"url": _url},
    ),
    "opsgenie": Kind(
        key="opsgenie_configs",
        required=("api_key_file",),
        optional=("api_url",),
        content=lambda use: {"message": _SUMMARIES, "description": _TEXT, "priority": use.priority},
        read={"api_url": _url},
    ),
    "slack": Kind(
        key="slack_configs",
        required=("api_url_file", "channel"),
        content=lambda _: {"title": _TITLE, "text": _TEXT},
    ),
    "email": Kind(
        key="email_configs",
        required=("to", "from", "smarthost", "auth_username", "auth_password_file"),
        content=lambda _: {"headers": {"Subject": f"{_TITLE}{_SUMMARIES}"}},
        read={"to": _mails, "from": _mails, "smarthost": _smarthost},
    ),
    "webhook": Kind(
        key="webhook_configs",
        optional=("token_file",),
        alternatives=("url", "url_file"),
        content=lambda _: {},
        read={"url": _url},
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Receiver:
    """One way to reach somebody; of owners those of a project, or of all that have none."""

    kind: str
    settings: Settings
    project: str = ""

    def entry(self, use: str) -> Content:
        """The entry of Alertmanager's list of this kind; ``use`` is page, ticket or watchdog."""
        content: Content = dict(self.settings)
        if token_file := content.pop("token_file", None):
            content["http_config"] = {"authorization": {"credentials_file": token_file}}
        return {
            **content,
            **KINDS[self.kind].content(USES[use]),
            "send_resolved": use != "watchdog",
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class SecretPolicy:
    """Whether secrets' files are here, and the oldest Alertmanager's digits after ``0.``."""

    are_here: bool
    version: int


def read_policy(entry: Entry) -> SecretPolicy:
    """What a deployment says of its secrets and its Alertmanager; SpecError if that is too old."""
    version = _OLDEST
    if entry.has("alertmanager"):
        matched = _VERSION.match(entry.texts("alertmanager")[0])
        if not matched or int(matched[1]) < _OLDEST:
            raise entry.refuse("alertmanager", 'write the oldest version in use, from "0.25" on')
        version = int(matched[1])
    are_here = not entry.has("secrets") or entry.choice("secrets", "here", "elsewhere") == "here"
    return SecretPolicy(are_here=are_here, version=version)


def read_receiver(entry: Entry, policy: SecretPolicy, use: str) -> Receiver:
    """The receiver of ``- KIND: {FIELD: VALUE}``, of owners with a ``project``; or SpecError."""
    optional = ("project",) if use == "owners" else ()
    entry.check_keys((), (*KINDS, *optional))
    name, *others = [each for each in entry.fields() if each not in optional]
    if others:
        raise entry.refuse(others[0], f"name one kind for each dash: {', '.join(KINDS)}")
    kind, body = KINDS[name], entry.entry(name)
    _refuse_inline_secrets(body, kind)
    body.check_keys(kind.required, kind.optional + kind.alternatives)
    if kind.alternatives and sum(map(body.has, kind.alternatives)) != 1:
        raise entry.refuse(name, f"write one of {' and '.join(kind.alternatives)}")
    settings = {}
    for each in body.fields():
        if (needed := _NEWER.get(each, 0)) > policy.version:
            raise body.refuse(each, f'needs alertmanager: "0.{needed}", if that is what runs')
        is_secret = each.endswith("_file")
        read = kind.read.get(each, Entry.text)
        settings[each] = _read_secret(body, each, policy) if is_secret else read(body, each)
    project = entry.text("project") if entry.has("project") else ""
    return Receiver(kind=name, settings=settings, project=project)


def _refuse_inline_secrets(body: Entry, kind: Kind) -> None:
    for name in body.fields():
        if f"{name}_file" in kind.required + kind.optional:
            # The value is a secret: it is not repeated on a terminal.
            raise body.refuse_secret(name, f"secrets are read from files; write {name}_file")


def _read_secret(body: Entry, name: str, policy: SecretPolicy) -> str:
    """The path of the file: Alertmanager reads a relative one from a folder of its own."""
    text = body.text(name)
    path = body.path.absolute().parent / text
    if not policy.are_here:
        if not Path(text).is_absolute():
            raise body.refuse(name, "is elsewhere: write the whole path, from / on")
        return text
    try:
        is_empty = not path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise body.refuse(
            name,
            f"cannot be read ({reason}); put the secret there, or write secrets: elsewhere where "
            "only Alertmanager's machine has it",
        ) from error
    if is_empty:
        raise body.refuse(name, "is empty; put the secret into it")
    return str(path)


_OPTION = "--deployment"
_PAGE_AGAIN, _TICKET_AGAIN, _GROUP_INTERVAL = map(Duration, ("4h", "12h", "5m"))
_REQUIRED = ("page", "ticket")
_OPTIONAL = (
    "owners", "watchdog", "alertmanager", "secrets", "cooldown", "office_hours", "maintenance",
    *SECTIONS,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Cooldown:
    """How long nobody is notified again of what still stands, or of changes in a group."""

    page: Annotated[Duration, Entry.duration] = _PAGE_AGAIN
    ticket: Annotated[Duration, Entry.duration] = _TICKET_AGAIN
    group_interval: Annotated[Duration, Entry.duration] = _GROUP_INTERVAL


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """Receivers by use, and when they are notified.

    Attributes:
        receivers: of ``page``, ``ticket``, and, where there are some, ``owners`` of jobs for what
            they repair themselves, and ``watchdog`` for whoever waits for it.
        maintenance: when pages, tickets or both wait.
    """

    receivers: Mapping[str, tuple[Receiver, ...]]
    cooldown: Cooldown = Cooldown()
    office_hours: OfficeHours | None = None
    maintenance: tuple[Maintenance, ...] = ()

    @property
    def time_windows(self) -> list[TimeWindow]:
        """Every named time."""
        office = [self.office_hours.window] if self.office_hours else []
        return office + [each.window for each in self.maintenance]


def webhooks(delivery: Delivery) -> Deployment:
    """What holds without a deployment file: the webhooks of the local stack's pager."""
    names = {"page": "pager", "ticket": "tickets"}
    return Deployment(
        receivers={
            use: (Receiver(kind="webhook", settings={"url": f"{delivery.pager_base}/{name}"}),)
            for use, name in names.items()
        },
        cooldown=Cooldown(group_interval=delivery.group_interval),
    )


def read_deployment(path: Path) -> Deployment:
    """The deployment of a file; a SpecError begins with file and line."""
    fields = load(path, _OPTION)
    if not isinstance(fields, Fields):
        raise SpecError(f"{_OPTION} {path}: is empty or no mapping; list the receivers in it")
    entry = Entry(path, "", fields)
    entry.check_keys(_REQUIRED, _OPTIONAL)
    policy = read_policy(entry)
    cooldown = Cooldown()
    if entry.has("cooldown"):
        cooldown = read_quantities(Cooldown, entry.entry("cooldown"))
    receivers = {
        use: tuple(read_receiver(each, policy, use) for each in entry.entries(use))
        for use in USES
        if entry.has(use)
    }
    owners = receivers.get("owners", ())
    if owners and all(each.project for each in owners):
        raise entry.refuse("owners", "name one without a project, for all other projects")
    return Deployment(
        receivers=receivers,
        cooldown=cooldown,
        office_hours=(
            read_office_hours(entry.entry("office_hours")) if entry.has("office_hours") else None
        ),
        maintenance=tuple(_maintenance(entry)) if entry.has("maintenance") else (),
    )


def _maintenance(entry: Entry) -> list[Maintenance]:
    found: list[Maintenance] = []
    for each in entry.entries("maintenance"):
        window = read_maintenance(each)
        if any(window.window.name == other.window.name for other in found):
            raise each.refuse("name", "two have this name; rename one")
        found.append(window)
    return found
