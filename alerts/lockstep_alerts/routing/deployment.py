"""The deployment file: who is paged and who gets tickets, how often, and when nobody is."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from lockstep_alerts.reading.model import Delivery, Duration
from lockstep_alerts.reading.yaml_lines import Located, load_located
from lockstep_alerts.routing.receivers import Receiver, SecretPolicy, read_receiver
from lockstep_alerts.routing.time_windows import (
    Maintenance,
    TimeWindow,
    read_maintenance,
    read_office_hours,
)

_OPTION = "--deployment"
_REQUIRED = ("page", "ticket")
_OPTIONAL = (
    "owners", "watchdog", "alertmanager", "secrets", "cooldown", "office_hours", "maintenance",
)  # fmt: skip
_VERSION = re.compile(r"0\.([0-9]{2})")
_OLDEST = (0, 25)
_PAGE_AGAIN, _TICKET_AGAIN, _GROUP_INTERVAL = map(Duration, ("4h", "12h", "5m"))
_Part = TypeVar("_Part")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cooldown:
    """How long nobody is notified again.

    Attributes:
        page: before a page that still stands is sent again.
        ticket: the same of a ticket.
        group_interval: before changes of a group that was notified are notified too.
    """

    page: Duration = _PAGE_AGAIN
    ticket: Duration = _TICKET_AGAIN
    group_interval: Duration = _GROUP_INTERVAL


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """Receivers by use, and when they are notified.

    Attributes:
        receivers: of ``page``, ``ticket``, and, where there are some, ``owners`` of jobs for what
            they repair themselves, and ``watchdog`` for whoever waits for it.
        cooldown: how long nobody is notified again.
        office_hours: when tickets are notified; None is always.
        maintenance: when pages, tickets or both wait.
    """

    receivers: Mapping[str, tuple[Receiver, ...]]
    cooldown: Cooldown = Cooldown()
    office_hours: TimeWindow | None = None
    maintenance: tuple[Maintenance, ...] = ()

    @property
    def time_windows(self) -> list[TimeWindow]:
        """Every named time."""
        office = [self.office_hours] if self.office_hours else []
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
    """The deployment of a file.

    Raises:
        SpecError: the file cannot be read, or a field of it is unknown, missing or wrong; the text
            begins with file and line.
    """
    fields = load_located(path, _OPTION).fields("deployment", _REQUIRED, _OPTIONAL)
    policy = _policy(path, fields)
    receivers: dict[str, tuple[Receiver, ...]] = {
        use: tuple(_each(fields[use], use, lambda entry: read_receiver(entry, policy)))
        for use in ("page", "ticket", "owners", "watchdog")
        if use in fields
    }
    office = fields.get("office_hours")
    windows = fields.get("maintenance")
    maintenance = tuple(_each(windows, "maintenance", read_maintenance)) if windows else ()
    if windows:
        _refuse_doubles(windows, maintenance)
    cooldown = fields.get("cooldown")
    return Deployment(
        receivers=receivers,
        cooldown=_cooldown(cooldown) if cooldown else Cooldown(),
        office_hours=read_office_hours(office) if office else None,
        maintenance=maintenance,
    )


def _policy(path: Path, fields: dict[str, Located]) -> SecretPolicy:
    version = _OLDEST
    if value := fields.get("alertmanager"):
        matched = _VERSION.fullmatch(str(value.node.value))
        if not matched or (0, int(matched[1])) < _OLDEST:
            raise value.refuse("alertmanager", 'write the oldest version in use, from "0.25" on')
        version = (0, int(matched[1]))
    secrets = fields.get("secrets")
    are_here = secrets is None or secrets.choice("secrets", "here", "elsewhere") == "here"
    return SecretPolicy(folder=path.absolute().parent, are_here=are_here, version=version)


def _each(value: Located, field: str, read: Callable[[Located], _Part]) -> Iterable[_Part]:
    entries = list(value.items(field))
    if not entries:
        raise value.refuse(field, "is empty; list one at least")
    return map(read, entries)


def _refuse_doubles(value: Located, maintenance: Iterable[Maintenance]) -> None:
    names = [each.window.name for each in maintenance]
    for entry, name in zip(value.items("maintenance"), names, strict=True):
        if names.count(name) > 1:
            raise entry.refuse("maintenance", "two have this name; rename one")


def _cooldown(value: Located) -> Cooldown:
    fields = value.fields("cooldown", (), ("page", "ticket", "group_interval"))
    return Cooldown(**{name: _duration(name, each) for name, each in fields.items()})


def _duration(field: str, value: Located) -> Duration:
    try:
        return Duration(value.text(field))
    except ValueError as error:
        raise value.refuse(field, f"{error}") from error
