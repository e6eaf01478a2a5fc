"""Events of a job: one type from the launcher to the ledger, and one JSON object a line of it.

``kinds.py`` is the table of kinds and fields. Delivery is at least once, so every event has an id.
"""

import json
import os
import platform
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeGuard

from lockstep_records.events.bounds import (
    MAX_LINE,
    EventError,
    check_document,
    fit,
    is_printable,
    quoted,
)
from lockstep_records.events.kinds import KIND_BY_NAME, KINDS, MAX_NUMBER, VERSION
from lockstep_records.file_access.foreign_files import ForeignFileError, open_foreign
from lockstep_records.file_access.own_files import open_for_append

FILE_NAME = "events.jsonl"
PREEMPTED = 75
"""Exit code of a rank, and of a job, that saved its state and gave way: start it again."""
OUT_OF_MEMORY = 76
"""Exit code of a rank that ran out of memory, its own or the GPU's."""
MAX_FUTURE_SECONDS = 300.0
"""Clocks of nodes differ by less; one that differs more would distort every duration."""
# A runaway or hostile file must not fill the memory of every reader.
MAX_EVENTS_BYTES, _HEAD_BYTES = 16 << 20, 1 << 20
_MAX_FIRST_LINES, _MAX_LAST_LINES = 1000, 19_000


def node_name() -> str:
    """Name of this machine: LOCKSTEP_NODE, or what the system calls it."""
    return os.environ.get("LOCKSTEP_NODE") or platform.node()


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One thing that happened to a job.

    Attributes:
        attempt: counts from 0, over restarts and requeues.
        time: wall clock of the node, seconds since 1970.
        node: that wrote it; None where the source knows no node, as a scheduler.
        launcher: which of a job's launchers on the node; None of the first, or only, one.
        cluster: None where the delivery tells it for all events of a node.
        owner: user id of the job's folder on the node that sent it; None where nobody looked.
        extra: members that this version has no name for, passed on unharmed.
        received: wall clock of the ledger at its arrival; None on the way there.
    """

    kind: str
    job_id: str
    attempt: int
    fields: dict[str, Any] = field(default_factory=dict)
    time: float = field(default_factory=time.time)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    node: str | None = field(default_factory=node_name)
    launcher: str | None = None
    cluster: str | None = None
    owner: int | None = None
    version: int = VERSION
    extra: dict[str, Any] = field(default_factory=dict)
    received: float | None = None

    @property
    def source(self) -> str:
        """The node, with ``/`` and the launcher where it is not the first; empty without a node."""
        return f"{self.node}/{self.launcher}" if self.node and self.launcher else self.node or ""

    @property
    def key(self) -> tuple[str, str]:
        """Cluster and id of the job."""
        return self.cluster or "", self.job_id

    @property
    def received_seconds(self) -> float:
        """Wall clock of the ledger that has received it."""
        assert self.received is not None
        return self.received

    def document(self) -> dict[str, Any]:
        """The event as JSON holds it; what is unknown is absent."""
        members = {name: getattr(self, name) for name in _MEMBERS}
        return {**self.extra, **{n: value for n, value in members.items() if value is not None}}

    def text(self, name: str) -> str:
        """A field that is a printable text; empty without one."""
        value = self.fields.get(name)
        return value if isinstance(value, str) and is_printable(value) else ""

    def number(self, name: str) -> float | None:
        """A field that is a number of 0 or more; None without one."""
        value = self.fields.get(name)
        return float(value) if _is_amount(value) else None

    def count(self, name: str) -> int | None:
        """As ``number``, whole."""
        value = self.fields.get(name)
        return int(value) if _is_amount(value) else None

    def numbers(self, name: str) -> dict[str, float]:
        """A field that holds numbers by name; what is none in it is left out."""
        value = self.fields.get(name)
        entries = value.items() if isinstance(value, dict) else ()
        return {str(key): float(number) for key, number in entries if _is_amount(number)}


_NUMBERS = (int, float)
_MEMBERS = tuple(each.name for each in fields(Event) if each.name not in {"extra", "received"})


def _is_amount(value: Any) -> TypeGuard[float]:
    # Infinity fails the comparison, as NaN does.
    return isinstance(value, _NUMBERS) and 0 <= value < MAX_NUMBER and not isinstance(value, bool)


def stable_id(*parts: object) -> str:
    """An id that depends on the parts only, so that an event imported twice counts once."""
    return uuid.uuid5(uuid.NAMESPACE_OID, json.dumps([str(part) for part in parts])).hex


def append_event(job: Path, event: Event) -> None:
    """Adds an event to the job's file with one write, so that no reader meets half of it.

    Texts are cut and cleaned to what every reader takes. Raises OSError.
    """
    assert event.kind in KINDS
    job.mkdir(mode=0o2750, parents=True, exist_ok=True)
    line = line_of(event) + "\n"
    descriptor = open_for_append(job / FILE_NAME)
    try:
        # A writer that was killed may have left a torn line: it is ended first, for it would take
        # this event with it.
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, ("\n" * torn + line).encode())
    finally:
        os.close(descriptor)


def line_of(event: Event) -> str:
    """The event as one line of JSON, its texts and numbers made fit."""
    document = event.document()
    document["fields"] = fit(document["fields"])
    return json.dumps(document, separators=(",", ":"))


def read_events(job: Path) -> list[Event]:
    """Events of a job in the order of writing; other lines are left out. Or OSError.

    Of a long file its begin and its end are read, so that neither the start nor the end of the job
    is missed; so are of many lines the first and the last. A file that is refused has none; see
    ``open_descriptor``, which logs it.
    """
    try:
        with open_foreign(job / FILE_NAME) as descriptor:
            data = _head_and_tail(descriptor)
    except (FileNotFoundError, NotADirectoryError, ForeignFileError):
        return []
    lines = data.split(b"\n")
    if len(lines) > _MAX_FIRST_LINES + _MAX_LAST_LINES:
        lines = lines[:_MAX_FIRST_LINES] + lines[-_MAX_LAST_LINES:]
    return parse_lines(line.decode(errors="replace") for line in lines)


def _head_and_tail(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    if size <= MAX_EVENTS_BYTES:
        return os.pread(descriptor, MAX_EVENTS_BYTES, 0)
    tail = os.pread(
        descriptor, MAX_EVENTS_BYTES - _HEAD_BYTES, size - (MAX_EVENTS_BYTES - _HEAD_BYTES)
    )
    # The cuts go through lines: what is left of them is none.
    head = os.pread(descriptor, _HEAD_BYTES, 0)
    return head[: head.rfind(b"\n") + 1] + tail[tail.find(b"\n") + 1 :]


def parse_event(document: object) -> Event:
    """The event of a decoded document, of any kind; an EventError names the field."""
    members = check_document(document)
    version = members.get("version")
    return Event(
        kind=members["kind"],
        job_id=members["job_id"],
        attempt=members["attempt"],
        fields=dict(members["fields"]),
        time=float(members["time"]),
        id=members["id"],
        node=members.get("node"),
        launcher=members.get("launcher"),
        cluster=members.get("cluster"),
        owner=members.get("owner"),
        version=version if isinstance(version, int) else VERSION,
        extra={name: value for name, value in members.items() if name not in _MEMBERS},
    )


def parse_line(line: str) -> Event:
    """The event on a line of the file; an EventError names the field."""
    if len(line) > MAX_LINE:
        raise EventError("value", f"the line has {len(line)} characters; {MAX_LINE} fit")
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise EventError("type", f"the line {line[:40]!r} is not a JSON object") from error
    return parse_event(document)


def parse_lines(lines: Iterable[str]) -> list[Event]:
    """The events on lines of a file, without the lines that are none."""
    events = []
    for line in lines:
        with suppress(EventError):
            events.append(parse_line(line))
    return events


def check_event(document: object, *, now_seconds: float) -> Event:
    """The event of a document from anywhere, as a receiver takes it; an EventError has a remedy."""
    version = document.get("version", VERSION) if isinstance(document, dict) else VERSION
    if version != VERSION or isinstance(version, bool):
        raise EventError("version", f"version {quoted(version)} is unknown here; send {VERSION}")
    event = parse_event(document)
    if event.time > now_seconds + MAX_FUTURE_SECONDS:
        raise EventError(
            "future", f"time {event.time:.0f} is {event.time - now_seconds:.0f} s in the future;"
            " set the clock of the node"
        )  # fmt: skip
    kind = KIND_BY_NAME.get(event.kind)
    for spec in kind.fields if kind else ():
        if spec.required and spec.name not in event.fields:
            raise EventError("missing", f"field {spec.name!r} is missing in {event.kind}:"
                             f" {spec.meaning}")  # fmt: skip
    return event


def is_finished(events: list[Event]) -> bool:
    """Whether the launcher has finished the job and has not started it again since."""
    return finish_time(events) is not None


def finish_time(events: list[Event]) -> float | None:
    """Wall clock of the job's end in seconds; None while it runs, also after a requeue."""
    for event in reversed(events):
        if event.kind == "job_finished":
            return event.time
        if event.kind in {"job_started", "attempt_started"}:
            return None
    return None
