"""Checks an event document against the table of kinds; the answer names field, value and remedy."""

import math
import re
from collections.abc import Callable
from typing import Any, Literal

from lockstep_records.event_kinds import KIND_BY_NAME, VERSION, EventField
from lockstep_records.events import Event, event_of

Refusal = Literal["version", "missing", "type", "future", "value"]
"""Why an event is refused: its version is unknown, a field is missing, of another type, out of
range, or its clock is in the future."""
MAX_FUTURE_SECONDS = 300.0
"""Clocks of nodes differ by less; one that differs more would distort every duration."""
MAX_TEXT = 4096
_MAX_ID, _MAX_JOB_ID, _MAX_KIND = 100, 200, 64
# Longer integers have no float.
_MAX_NUMBER = 1e300
_MAX_DIGITS_BOUND, _MAX_QUOTED = 10**30, 80
_ENVELOPE = ("id", "kind", "job_id", "attempt", "time", "fields")
# The last moment of the year 9999: what is later is no time.
_MAX_TIME = 253_402_300_799.0
_JOB_ID = re.compile(r"[A-Za-z0-9][\w.\-:/+@\[\]]{0,199}")


class EventError(ValueError):
    """An event that is refused.

    Attributes:
        refusal: the kind of reason, for a counter; the text is one sentence for people.
    """

    def __init__(self, refusal: Refusal, sentence: str) -> None:
        super().__init__(sentence)
        self.refusal: Refusal = refusal


def check_event(document: object, *, now_seconds: float) -> Event:
    """The event of a document.

    Args:
        document: decoded JSON of unknown origin.
        now_seconds: wall clock of the reader.

    Raises:
        EventError: it is no event of this version; the text says which field and why.
    """
    if not isinstance(document, dict):
        raise EventError("type", f"an event is a JSON object, not {_quoted(document)}")
    version = document.get("version", VERSION)
    if version != VERSION or isinstance(version, bool):
        raise EventError("version", f"version {_quoted(version)} is unknown here; send {VERSION}")
    for name in _ENVELOPE:
        if name not in document:
            raise EventError("missing", f"field {name!r} is missing; every event has it")
    _check_envelope(document, now_seconds)
    try:
        event = event_of(document)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise EventError("type", str(error)) from error
    kind = KIND_BY_NAME.get(event.kind)
    for spec in kind.fields if kind else ():
        _check_field(event, spec)
    return event


def _check_envelope(document: dict[str, Any], now_seconds: float) -> None:
    for name, limit in (("id", _MAX_ID), ("job_id", _MAX_JOB_ID), ("kind", _MAX_KIND)):
        text = document[name]
        if not isinstance(text, str) or not 1 <= len(text) <= limit or not text.isprintable():
            raise EventError(
                "type", f"{name} {_quoted(text)} must be 1 to {limit} printable characters"
            )
    if not _JOB_ID.fullmatch(document["job_id"]):
        raise EventError("value", f"job_id {_quoted(document['job_id'])} must begin with a letter"
                         " or digit and hold no space")  # fmt: skip
    attempt, moment = document["attempt"], document["time"]
    if not _is_integer(attempt) or not 0 <= attempt < 10**9:
        raise EventError("type", f"attempt {_quoted(attempt)} must be a whole number from 0 on")
    if not _is_number(moment) or not 0 <= moment <= _MAX_TIME:
        raise EventError("type", f"time {_quoted(moment)} must be seconds since 1970")
    if moment > now_seconds + MAX_FUTURE_SECONDS:
        raise EventError(
            "future", f"time {moment:.0f} is {moment - now_seconds:.0f} s in the future;"
            " set the clock of the node"
        )  # fmt: skip
    if not isinstance(document["fields"], dict):
        raise EventError("type", f"fields {_quoted(document['fields'])} must be a JSON object")
    for name in ("node", "cluster"):
        text = document.get(name)
        if text is not None and not (isinstance(text, str) and len(text) <= MAX_TEXT):
            raise EventError("type", f"{name} {_quoted(text)} must be a text")


def _check_field(event: Event, spec: EventField) -> None:
    if spec.name not in event.fields:
        if spec.required:
            raise EventError("missing", f"field {spec.name!r} is missing in {event.kind}:"
                             f" {spec.meaning}")  # fmt: skip
        return
    value = event.fields[spec.name]
    if value is None and spec.nullable:
        return
    if not _SHAPES[spec.shape](value):
        raise EventError("type", f"{event.kind}.{spec.name} {_quoted(value)} must be {_WORDS[spec.shape]}")  # noqa: E501  # one sentence  # fmt: skip
    names = value if isinstance(value, dict) else (value,)
    wrong = next((name for name in names if spec.values and name not in spec.values), None)
    if wrong is not None:
        raise EventError("value", f"{event.kind}.{spec.name} {_quoted(wrong)} must be one of"
                         f" {', '.join(spec.values)}")  # fmt: skip


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < _MAX_NUMBER and math.isfinite(value)


def _is_list(value: object, item: Callable[[object], bool]) -> bool:
    return isinstance(value, list) and all(map(item, value))


_SHAPES: dict[str, Callable[[object], bool]] = {
    "text": lambda value: isinstance(value, str) and len(value) <= MAX_TEXT,
    "integer": _is_integer,
    "number": _is_number,
    "flag": lambda value: isinstance(value, bool),
    "integers": lambda value: _is_list(value, _is_integer),
    "texts": lambda value: _is_list(value, lambda item: isinstance(item, str)),
    "objects": lambda value: _is_list(value, lambda item: isinstance(item, dict)),
    "object": lambda value: isinstance(value, dict),
    "numbers_by_name": lambda value: (
        isinstance(value, dict) and all(_is_number(n) and n >= 0 for n in value.values())
    ),
}
_WORDS = {
    "text": f"a text of at most {MAX_TEXT} characters", "integer": "a whole number",
    "number": "a finite number", "flag": "true or false", "integers": "a list of whole numbers",
    "texts": "a list of texts", "objects": "a list of objects", "object": "an object",
    "numbers_by_name": "an object of numbers from 0 on",
}  # fmt: skip


def _quoted(value: object) -> str:
    """The value as a message holds it, shortened."""
    # repr of a huge integer raises ValueError from 4,300 digits on.
    if isinstance(value, int) and abs(value) >= _MAX_DIGITS_BOUND:
        return "a number of more than 30 digits"
    text = repr(value)
    return text if len(text) <= _MAX_QUOTED else text[: _MAX_QUOTED - 3] + "..."
