"""The deployment file: who is paged and who gets tickets, how often, and when nobody is."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from lockstep_alerts.reading.entry import Entry, Fields, SpecError, load
from lockstep_alerts.reading.model import Delivery, Duration
from lockstep_alerts.reading.overlay import SECTIONS
from lockstep_alerts.reading.quantities import read_quantities
from lockstep_alerts.routing.receivers import USES, Receiver, read_policy, read_receiver
from lockstep_alerts.routing.time_windows import (
    Maintenance,
    OfficeHours,
    TimeWindow,
    read_maintenance,
    read_office_hours,
)

_OPTION = "--deployment"
_PAGE_AGAIN, _TICKET_AGAIN, _GROUP_INTERVAL = map(Duration, ("4h", "12h", "5m"))
_REQUIRED = ("page", "ticket")
_OPTIONAL = (
    "owners", "watchdog", "alertmanager", "secrets", "cooldown", "office_hours", "maintenance",
    *SECTIONS,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Cooldown:
    """How long nobody is notified again.

    Attributes:
        page: before a page that still stands is sent again.
        ticket: the same of a ticket.
        group_interval: before changes of a group that was notified are notified too.
    """

    page: Annotated[Duration, Entry.duration] = _PAGE_AGAIN
    ticket: Annotated[Duration, Entry.duration] = _TICKET_AGAIN
    group_interval: Annotated[Duration, Entry.duration] = _GROUP_INTERVAL


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
    """The deployment of a file.

    Raises:
        SpecError: the file cannot be read, or a field of it is unknown, missing or wrong; the text
            begins with file and line.
    """
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
