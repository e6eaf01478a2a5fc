"""The kinds of events and their fields: kinds.toml, from which schema, check and docs are made."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lockstep_catalogue.vocabulary import FAILURE_CLASSES, GOODPUT_STATES, OUTCOMES
from lockstep_records.text.documents import read_toml

VERSION = 1
"""Version of an event; it rises when an old reader would misread a new event."""

MAX_TEXT = 4096
"""Characters of a text, a line's feeds and tabs among them."""
MAX_NAME = 200
MAX_ITEMS = 10_000
"""Entries of a list or of an object."""
MAX_NUMBER = 1e15
"""Bound of a number that has no bound of its own."""
_TABLE = read_toml(Path(__file__).with_suffix(".toml"))
_BOUNDS: dict[str, int] = _TABLE["bounds"]
MAX_WHOLE, LAST_TIME = _BOUNDS["whole"], _BOUNDS["last_time"]
_VOCABULARIES: dict[str, tuple[str, ...]] = {
    "outcomes": OUTCOMES,
    "failure_classes": FAILURE_CLASSES,
    "goodput_states": GOODPUT_STATES,
}
OWN_PREFIX = "ledger_"
"""Kinds of this name are the ledger's own; nobody else may send one."""

Shape = Literal[
    "text", "integer", "number", "flag", "integers", "texts", "numbers_by_name", "objects", "object"
]


@dataclass(frozen=True, slots=True)
class EventField:
    """A field of an event.

    Attributes:
        shape: JSON type; ``numbers_by_name`` is an object of numbers, ``objects`` a list.
        values: the only texts allowed, or the only names; any where empty.
        required: whether an event of the kind without it is refused.
        nullable: whether null means unknown; an optional field may also be absent.
        least, most: range of its numbers; None is the range of all numbers of events.
    """

    name: str
    shape: Shape
    meaning: str
    values: tuple[str, ...] = ()
    required: bool = False
    nullable: bool = True
    least: int | None = None
    most: int | None = None

    @property
    def range(self) -> tuple[float, float]:
        """The least and the highest number."""
        limit = MAX_NUMBER if self.shape in {"number", "numbers_by_name"} else MAX_WHOLE
        least = 0.0 if self.shape == "numbers_by_name" else -limit
        return (
            least if self.least is None else self.least,
            limit if self.most is None else self.most,
        )


@dataclass(frozen=True, slots=True)
class EventKind:
    """A kind of event; one of an ``edge``, of a job or an attempt, stays longest in a spool."""

    name: str
    meaning: str
    fields: tuple[EventField, ...]
    edge: bool = False


def _bound(value: int | str | None) -> int | None:
    if not isinstance(value, str):
        return value
    return -_BOUNDS[value[1:]] if value.startswith("-") else _BOUNDS[value]


def _read_field(row: dict[str, Any]) -> EventField:
    sort = row.pop("sort")
    row = {**_TABLE["sorts"].get(sort, {"shape": sort}), **row}
    values = row.pop("values", ())
    values = _VOCABULARIES[values] if isinstance(values, str) else tuple(values)
    least, most = (_bound(row.pop(name, None)) for name in ("least", "most"))
    return EventField(**row, values=values, least=least, most=most)


def _read_kind(row: dict[str, Any]) -> EventKind:
    fields = (*_GROUPS.get(row.pop("group", ""), ()), *map(_read_field, row.pop("fields", ())))
    return EventKind(**row, fields=fields)


_GROUPS = {name: tuple(map(_read_field, rows)) for name, rows in _TABLE["groups"].items()}
EVENT_KINDS = tuple(map(_read_kind, _TABLE["kinds"]))
KIND_BY_NAME = {kind.name: kind for kind in EVENT_KINDS}
KINDS = tuple(KIND_BY_NAME)
EDGE_KINDS = frozenset(kind.name for kind in EVENT_KINDS if kind.edge)
