"""The bounds of an event document: what holds for every value, then what its kind's table states.

Everybody who reads an event, from a file or from a request, refuses the same documents.
"""

import math
import re
import reprlib
from collections.abc import Callable
from typing import Any, Literal, TypeGuard

from lockstep_records.events.kinds import (
    KIND_BY_NAME,
    LAST_TIME,
    MAX_ITEMS,
    MAX_NAME,
    MAX_TEXT,
    MAX_WHOLE,
    OWN_PREFIX,
    EventField,
)

Refusal = Literal["version", "missing", "type", "future", "value", "scope"]
"""Why an event is refused: its version is unknown, a field is missing, of another type, out of
range, its clock is in the future, or it is not its sender's to send."""
MAX_LINE = 65_536
"""Characters of an event as JSON."""
MAX_DEPTH = 8
MAX_ID, MAX_KIND, MAX_ATTEMPT, MAX_OWNER = 100, 64, 10**9 - 1, 2**32 - 1
UNFIT = r"\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""Characters of no text, as a class of a pattern: they steer terminals or turn a line around."""
_UNFIT = re.compile(rf"[{UNFIT}\ud800-\udfff]")
KIND = re.compile(r"[a-z][a-z0-9_]{0,63}")
_JOB_ID = re.compile(r"[A-Za-z0-9][\w.\-:/+@\[\]]{0,199}")
_ENVELOPE = ("id", "kind", "job_id", "attempt", "time", "fields")
_CHECKED = frozenset({"id", "kind", "job_id", "attempt", "time", "node", "launcher",
                      "cluster", "owner"})  # fmt: skip
_SPECS = {name: {spec.name: spec for spec in kind.fields} for name, kind in KIND_BY_NAME.items()}
_CONTAINERS = (dict, list)
_MAX_VALUES = 20_000
_MAX_DIGITS_BOUND = 10**30


class EventError(ValueError):
    """An event that is refused, in a sentence, and of which kind of ``refusal`` for a counter."""

    def __init__(self, refusal: Refusal, sentence: str) -> None:
        super().__init__(sentence)
        self.refusal: Refusal = refusal


def check_document(document: object) -> dict[str, Any]:
    """The document itself, if every reader can take it, whatever is missing; or EventError."""
    if not isinstance(document, dict):
        raise EventError("type", f"an event is a JSON object, not {quoted(document)}")
    for name in _ENVELOPE:
        if name not in document:
            raise EventError("missing", f"field {name!r} is missing; every event has it")
    _check_names(document)
    _check_numbers(document)
    fields = document["fields"]
    if not isinstance(fields, dict):
        raise EventError("type", f"fields {quoted(fields)} must be a JSON object")
    budget = [_MAX_VALUES, MAX_LINE]
    for name, value in document.items():
        if name not in _CHECKED:
            _check_value(name, value, MAX_DEPTH, budget)
    specs = _SPECS.get(document["kind"], {})
    for name, value in fields.items():
        if name in specs:
            _check_field(document["kind"], value, specs[name])
    return document


def fit(value: Any) -> Any:
    """A value as an event may hold it: texts cut and without control characters, numbers finite."""
    if isinstance(value, str):
        return _UNFIT.sub(lambda match: ascii(match[0])[1:-1], value[:MAX_TEXT])[:MAX_TEXT]
    if isinstance(value, dict):
        return {fit(str(name))[:MAX_NAME]: fit(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [fit(inner) for inner in value[:MAX_ITEMS]]
    return value if value is None or isinstance(value, bool) or is_number(value) else None


def _check_names(document: dict[str, Any]) -> None:
    for name, limit in (("id", MAX_ID), ("job_id", MAX_NAME), ("kind", MAX_KIND)):
        text = document[name]
        if not _is_name(text, limit) or not text:
            raise EventError(
                "type", f"{name} {quoted(text)} must be 1 to {limit} printable characters"
            )
    if not _JOB_ID.fullmatch(document["job_id"]):
        raise EventError("value", f"job_id {quoted(document['job_id'])} must begin with a letter"
                         " or digit and hold no space")  # fmt: skip
    kind = document["kind"]
    if not KIND.fullmatch(kind):
        raise EventError(
            "type", f"kind {quoted(kind)} is not a name of small letters, digits and underscores"
        )
    if kind.startswith(OWN_PREFIX):
        raise EventError(
            "value", f"kind {kind!r} is the ledger's own; send a kind of docs/formats/events.md"
        )
    for name in ("node", "launcher", "cluster"):
        text = document.get(name)
        if text is not None and not _is_name(text, MAX_NAME):
            raise EventError(
                "type", f"{name} {quoted(text)} must be at most {MAX_NAME} printable characters"
            )


def _check_numbers(document: dict[str, Any]) -> None:
    attempt, moment, owner = document["attempt"], document["time"], document.get("owner")
    if not _is_integer(attempt) or not 0 <= attempt <= MAX_ATTEMPT:
        raise EventError(
            "type", f"attempt {quoted(attempt)} must be a whole number from 0 to {MAX_ATTEMPT}"
        )
    if not is_number(moment) or not 0 <= moment <= LAST_TIME:
        raise EventError("type", f"time {quoted(moment)} must be seconds since 1970")
    if owner is not None and not (_is_integer(owner) and 0 <= owner <= MAX_OWNER):
        raise EventError("type", f"owner {quoted(owner)} must be a user id, 0 to {MAX_OWNER}")


def _check_value(name: str, value: object, depth: int, budget: list[int]) -> None:
    """Checks any value, also of a field that nobody here knows; the budget is of the document."""
    budget[0] -= 1
    if isinstance(value, str):
        budget[1] -= len(value)
        if len(value) > MAX_TEXT or _UNFIT.search(value):
            raise EventError(
                "value",
                f"{name} {quoted(value)} must be a text of at most {MAX_TEXT} characters without"
                " control characters and surrogates",
            )
    elif isinstance(value, _CONTAINERS):
        _check_entries(name, value, depth, budget)
    elif value is not None and not isinstance(value, bool) and not is_number(value):
        raise EventError("value", f"{name} {quoted(value)} must be a finite number, a whole one"
                         f" at most {MAX_WHOLE}")  # fmt: skip
    if budget[0] < 0 or budget[1] < 0:
        raise EventError("value", f"the event must have at most {_MAX_VALUES} values and {MAX_LINE}"
                         " characters")  # fmt: skip


def _check_entries(
    name: str, value: dict[str, Any] | list[Any], depth: int, budget: list[int]
) -> None:
    if depth == 0 or len(value) > MAX_ITEMS:
        raise EventError("value", f"{name} must have at most {MAX_ITEMS} entries a list and"
                         f" {MAX_DEPTH} lists in each other")  # fmt: skip
    for key in value if isinstance(value, dict) else ():
        budget[1] -= len(str(key))
        if not isinstance(key, str) or len(key) > MAX_NAME or _UNFIT.search(key):
            raise EventError(
                "value",
                f"{name} has the member {quoted(key)}; a name has at most {MAX_NAME} characters"
                " without control characters",
            )
    entries = value.items() if isinstance(value, dict) else ((name, inner) for inner in value)
    for member, inner in entries:
        _check_value(member, inner, depth - 1, budget)


def _check_field(kind: str, value: object, spec: EventField) -> None:
    if value is None and spec.nullable:
        return
    if not _SHAPES[spec.shape](value):
        raise EventError("type", f"{kind}.{spec.name} {quoted(value)} must be {_WORDS[spec.shape]}")
    names = value if isinstance(value, dict) else (value,)
    wrong = [name for name in names if name not in spec.values] if spec.values else ()
    if wrong:
        raise EventError("value", f"{kind}.{spec.name} {quoted(wrong[0])} must be one of"
                         f" {', '.join(spec.values)}")  # fmt: skip
    if spec.shape not in _NUMERIC:
        return
    least, most = spec.range
    numbers: Any = value.values() if isinstance(value, dict) else value
    for number in numbers if isinstance(value, dict | list) else (numbers,):
        if not least <= number <= most:
            raise EventError(
                "value",
                f"{kind}.{spec.name} {quoted(number)} must be from {least:.16g} to {most:.16g}",
            )


def _is_name(text: object, limit: int) -> bool:
    return isinstance(text, str) and len(text) <= limit and text.isprintable()


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def is_printable(text: str) -> bool:
    """Whether a text is short and without control characters, so that any database holds it."""
    return _is_name(text, MAX_NAME)


def is_number(value: object) -> bool:
    """Whether a value is a finite number that every program reads exactly."""
    if isinstance(value, float):
        return math.isfinite(value)
    return _is_integer(value) and -MAX_WHOLE <= value <= MAX_WHOLE


def _is_list(value: object, item: Callable[[object], bool]) -> bool:
    return isinstance(value, list) and all(map(item, value))


_SHAPES: dict[str, Callable[[object], bool]] = {
    "text": lambda value: isinstance(value, str),
    "integer": _is_integer,
    "number": is_number,
    "flag": lambda value: isinstance(value, bool),
    "integers": lambda value: _is_list(value, _is_integer),
    "texts": lambda value: _is_list(value, lambda item: isinstance(item, str)),
    "objects": lambda value: _is_list(value, lambda item: isinstance(item, dict)),
    "object": lambda value: isinstance(value, dict),
    "numbers_by_name": lambda value: (
        isinstance(value, dict) and all(is_number(n) and n >= 0 for n in value.values())
    ),
}
_NUMERIC = frozenset({"integer", "number", "integers", "numbers_by_name"})
_WORDS = {
    "text": f"a text of at most {MAX_TEXT} characters", "integer": "a whole number",
    "number": "a finite number", "flag": "true or false", "integers": "a list of whole numbers",
    "texts": "a list of texts", "objects": "a list of objects", "object": "an object",
    "numbers_by_name": "an object of numbers from 0 on",
}  # fmt: skip
_short = reprlib.Repr()
_short.maxlevel, _short.maxstring, _short.maxother, _short.maxlong = 2, 80, 80, 40


def quoted(value: object) -> str:
    """The value as a message holds it, shortened."""
    # repr of a huge integer raises ValueError from 4,300 digits on.
    if isinstance(value, int) and abs(value) >= _MAX_DIGITS_BOUND:
        return "a number of more than 30 digits"
    try:
        return _short.repr(value)
    except ValueError:
        return "an object"
