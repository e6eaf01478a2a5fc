"""Events of a job: one JSON object a line, appended by the launcher, read by every component.

Kinds: job_started, attempt_started, rank_ended, attempt_ended, job_finished, hang. Delivery is at
least once, so every event has an id of its own.
"""

import json
import os
import time
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

KINDS = ("job_started", "attempt_started", "hang", "rank_ended", "attempt_ended", "job_finished")
FILE_NAME = "events.jsonl"
PREEMPTED = 75
"""Exit code of a rank, and of a job, that saved its state and gave way: start it again."""
OUT_OF_MEMORY = 76
"""Exit code of a rank that ran out of memory, its own or the GPU's."""
# A runaway or hostile file must not fill the memory of every reader.
_MAX_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One thing that happened to a job; ``fields`` depend on the kind.

    rank_ended: rank, pid, exit_code, signal (name or None), first (failed before all others).
    hang: ranks (phase and step of each), missing (ranks that they wait for), limit_seconds.
    attempt_ended, job_finished: outcome (one of ``OUTCOMES``) and exit_code.
    """

    kind: str
    job_id: str
    attempt: int
    fields: dict[str, Any] = field(default_factory=dict)
    time: float = field(default_factory=time.time)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


def append_event(job: Path, event: Event) -> None:
    """Adds an event to the job's file with one write, so that no reader meets half of it.

    Raises:
        OSError: the job's folder cannot be written.
    """
    assert event.kind in KINDS
    job.mkdir(mode=0o2750, parents=True, exist_ok=True)
    line = json.dumps(asdict(event), separators=(",", ":")) + "\n"
    descriptor = os.open(
        job / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640
    )
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

    Raises:
        OSError: the file cannot be read.
    """
    path = job / FILE_NAME
    if not path.is_file():
        return []
    with path.open("rb") as file:
        text = file.read(_MAX_BYTES).decode(errors="replace")
    return [event for line in text.splitlines() if (event := parse_event(line)) is not None]


def parse_event(line: str) -> Event | None:
    """The event on a line of the file; None where the line is no event."""
    try:
        entry = json.loads(line)
        event = Event(
            kind=str(entry["kind"]),
            job_id=str(entry["job_id"]),
            attempt=int(entry["attempt"]),
            fields=dict(entry["fields"]),
            time=float(entry["time"]),
            id=str(entry["id"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return event if event.kind in KINDS else None


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
