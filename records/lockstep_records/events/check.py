"""Checks an event as a receiver does; the answer names field, value and remedy."""

from lockstep_records.events.bounds import EventError, check_document, quoted
from lockstep_records.events.event import Event, event_of
from lockstep_records.events.kinds import KIND_BY_NAME, VERSION

MAX_FUTURE_SECONDS = 300.0
"""Clocks of nodes differ by less; one that differs more would distort every duration."""


def check_event(document: object, *, now_seconds: float) -> Event:
    """The event of a document.

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
