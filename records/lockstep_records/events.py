"""Events of a job: one JSON object a line, appended by the launcher and the library, read by all.

``event_kinds`` is the table of kinds and fields. Delivery is at least once, so every event has an
id of its own.
"""

import json
import os
import platform
import re
import time
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lockstep_records.event_kinds import KINDS, VERSION
from lockstep_records.foreign_files import ForeignFileError, open_foreign
from lockstep_records.own_files import open_for_append

FILE_NAME = "events.jsonl"
PREEMPTED = 75
"""Exit code of a rank, and of a job, that saved its state and gave way: start it again."""
OUT_OF_MEMORY = 76
"""Exit code of a rank that ran out of memory, its own or the GPU's."""
# A runaway or hostile file must not fill the memory of every reader.
MAX_EVENTS_BYTES, _HEAD_BYTES = 16 << 20, 64 << 10
_KIND = re.compile(r"[a-z][a-z0-9_]{0,63}")
_OPTIONAL = ("node", "cluster")


def node_name() -> str:
    """Name of this machine: LOCKSTEP_NODE, or what the system calls it."""
    return os.environ.get("LOCKSTEP_NODE") or platform.node()


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One thing that happened to a job.

    Attributes:
        kind: a name of ``EVENT_KINDS``, or one of a newer writer.
        attempt: counts from 0, over restarts and requeues.
        fields: depend on the kind.
        time: wall clock of the node, seconds since 1970.
        node: that wrote it; None where the source knows no node.
        cluster: None where the delivery tells it for all events of a node.
    """

    kind: str
    job_id: str
    attempt: int
    fields: dict[str, Any] = field(default_factory=dict)
    time: float = field(default_factory=time.time)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    node: str | None = field(default_factory=node_name)
    cluster: str | None = None
    version: int = VERSION

    def document(self) -> dict[str, Any]:
        """The event as JSON holds it; what is unknown is absent."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def stable_id(*parts: object) -> str:
    """The same id for the same parts, so that what is imported twice counts once."""
    return uuid.uuid5(uuid.NAMESPACE_OID, json.dumps([str(part) for part in parts])).hex


def append_event(job: Path, event: Event) -> None:
    """Adds an event to the job's file with one write, so that no reader meets half of it.

    Raises:
        OSError: the job's folder cannot be written.
    """
    assert event.kind in KINDS
    job.mkdir(mode=0o2750, parents=True, exist_ok=True)
    line = json.dumps(event.document(), separators=(",", ":")) + "\n"
    descriptor = open_for_append(job / FILE_NAME)
    try:
        # A writer that was killed may have left a torn line: it is ended first, for it would take
        # this event with it.
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, ("\n" * torn + line).encode())
    finally:
        os.close(descriptor)


def read_events(job: Path) -> list[Event]:
    """Events of a job in the order of writing; lines that are no events are left out.

    Of a file beyond 16 MiB the first and the last ones: they say how the job began, and its state.
    A file that is refused has none; see ``open_descriptor``, which logs it.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        with open_foreign(job / FILE_NAME) as descriptor:
            data = os.pread(descriptor, MAX_EVENTS_BYTES, 0)
            end = os.fstat(descriptor).st_size
            if end > MAX_EVENTS_BYTES:
                head = data[: data.rfind(b"\n", 0, _HEAD_BYTES) + 1]
                tail_begin = max(_HEAD_BYTES, end - MAX_EVENTS_BYTES)
                tail = os.pread(descriptor, MAX_EVENTS_BYTES, tail_begin)
                data = head + tail.partition(b"\n")[2]
    except (FileNotFoundError, ForeignFileError):
        return []
    text = data.decode(errors="replace")
    return [event for line in text.splitlines() if (event := parse_event(line)) is not None]


def parse_event(line: str) -> Event | None:
    """The event on a line of the file, of any kind; None where the line is no event."""
    try:
        return event_of(json.loads(line))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def event_of(entry: dict[str, Any]) -> Event:
    """The event of a JSON object; fields are not checked (``event_check`` does that).

    Raises:
        ValueError, KeyError, TypeError, OverflowError: it is no event.
    """
    kind = entry["kind"]
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        raise ValueError(f"kind {kind!r:.80} is no name of small letters, digits and underscores")
    node, cluster = (None if entry.get(name) is None else str(entry[name]) for name in _OPTIONAL)
    return Event(
        kind=kind,
        job_id=str(entry["job_id"]),
        attempt=int(entry["attempt"]),
        fields=dict(entry["fields"]),
        time=float(entry["time"]),
        id=str(entry["id"]),
        node=node,
        cluster=cluster,
        version=int(entry.get("version", VERSION)),
    )


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
