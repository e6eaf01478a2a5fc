"""Events of a job: one JSON object a line, appended by the launcher and the library, read by all.

``event_kinds`` is the table of kinds and fields. Delivery is at least once, so every event has an
id of its own.
"""

import json
import os
import platform
import time
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lockstep_records.events.bounds import MAX_LINE, EventError, check_document, fit, quoted
from lockstep_records.events.kinds import KIND_BY_NAME, KINDS, VERSION
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
        kind: a name of ``EVENT_KINDS``, or one of a newer writer.
        attempt: counts from 0, over restarts and requeues.
        time: wall clock of the node, seconds since 1970.
        node: that wrote it; None where the source knows no node.
        launcher: which of a job's launchers on the node; None of the first, or only, one.
        cluster: None where the delivery tells it for all events of a node.
        owner: user id of the job's folder on the node that sent it; None where nobody looked.
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

    def document(self) -> dict[str, Any]:
        """The event as JSON holds it; what is unknown is absent."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def stable_id(*parts: object) -> str:
    """An id that depends on the parts only, so that an event imported twice counts once."""
    return uuid.uuid5(uuid.NAMESPACE_OID, json.dumps([str(part) for part in parts])).hex


def append_event(job: Path, event: Event) -> None:
    """Adds an event to the job's file with one write, so that no reader meets half of it.

    Texts are cut and cleaned to what every reader takes.

    Raises:
        OSError: the job's folder cannot be written, or another user made its file.
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
    """Events of a job in the order of writing; other lines are left out.

    Of a long file its begin and its end are read, so that neither the start nor the end of the job
    is missed; so are of many lines the first and the last. A file that is refused has none; see
    ``open_descriptor``, which logs it.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        with open_foreign(job / FILE_NAME) as descriptor:
            data = _head_and_tail(descriptor)
    except (FileNotFoundError, NotADirectoryError, ForeignFileError):
        return []
    lines = data.split(b"\n")
    if len(lines) > _MAX_FIRST_LINES + _MAX_LAST_LINES:
        lines = lines[:_MAX_FIRST_LINES] + lines[-_MAX_LAST_LINES:]
    found = (parse_event(line.decode(errors="replace")) for line in lines)
    return [event for event in found if event is not None]


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


def parse_event(line: str) -> Event | None:
    """The event on a line of the file, of any kind; None when the line is not an event."""
    try:
        return event_of(document_of(line))
    except EventError:
        return None


def document_of(line: str) -> dict[str, Any]:
    """The document on a line of the file.

    Raises:
        EventError: the line is not an event; the text says which field and why.
    """
    if len(line) > MAX_LINE:
        raise EventError("value", f"the line has {len(line)} characters; {MAX_LINE} fit")
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise EventError("type", f"the line {line[:40]!r} is not a JSON object") from error
    return check_document(document)


def event_of(document: dict[str, Any]) -> Event:
    """The event of a document that was checked."""
    version = document.get("version", VERSION)
    return Event(
        kind=document["kind"],
        job_id=document["job_id"],
        attempt=document["attempt"],
        fields=dict(document["fields"]),
        time=float(document["time"]),
        id=document["id"],
        node=document.get("node"),
        launcher=document.get("launcher"),
        cluster=document.get("cluster"),
        owner=document.get("owner"),
        version=version if isinstance(version, int) else VERSION,
    )


def check_event(document: object, *, now_seconds: float) -> Event:
    """The event of a document, as a receiver takes it; what it refuses it names with a remedy.

    Args:
        document: decoded JSON of unknown origin.
        now_seconds: wall clock of the reader.

    Raises:
        EventError: the value is not an event of this version; the text says which field and why.
    """
    version = document.get("version", VERSION) if isinstance(document, dict) else VERSION
    if version != VERSION or isinstance(version, bool):
        raise EventError("version", f"version {quoted(version)} is unknown here; send {VERSION}")
    event = event_of(check_document(document))
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
