"""Kinds of receivers: the fields of each, and what Alertmanager is given."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from lockstep_alerts.reading.entry import Entry, Fields, SpecError, load, read_quantities
from lockstep_alerts.reading.model import Delivery, Duration
from lockstep_alerts.reading.overlay import SECTIONS
from lockstep_alerts.routing import time_windows
from lockstep_cli.options import read_address

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
        content=lambda use: {
            "message": _SUMMARIES,
            "description": _TEXT,
            "priority": use.priority,
        },
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
    office_hours: time_windows.OfficeHours | None = None
    maintenance: tuple[time_windows.Maintenance, ...] = ()

    @property
    def time_windows(self) -> list[time_windows.TimeWindow]:
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
            time_windows.read_office_hours(entry.entry("office_hours"))
            if entry.has("office_hours")
            else None
        ),
        maintenance=tuple(_maintenance(entry)) if entry.has("maintenance") else (),
    )


def _maintenance(entry: Entry) -> list[time_windows.Maintenance]:
    found: list[time_windows.Maintenance] = []
    for each in entry.entries("maintenance"):
        window = time_windows.read_maintenance(each)
        if any(window.window.name == other.window.name for other in found):
            raise each.refuse("name", "two have this name; rename one")
        found.append(window)
    return found
