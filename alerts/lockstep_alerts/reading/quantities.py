"""The types of the limits that an entry of the spec gives, and their one reader."""

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Annotated, Any, TypeVar, get_type_hints

from lockstep_alerts.reading.entry import Entry
from lockstep_alerts.reading.model import Duration

Read = Callable[[Entry, str], Any]
"""Reads a field of an entry, which refuses another value with its location."""


def number(above: float, up_to: float) -> Read:
    """A number greater than ``above`` and at most ``up_to``."""
    return lambda entry, field: entry.number(field, above, up_to)


def whole_number(above: float, up_to: float) -> Read:
    """The nearest whole number."""
    return lambda entry, field: round(entry.number(field, above, up_to))


def choice(*allowed: str) -> Read:
    """One of the allowed words."""
    return lambda entry, field: entry.choice(field, *allowed)


Ratio = Annotated[float, number(0, 1)]
Window = Annotated[Duration, Entry.window]

_Kind = TypeVar("_Kind")


def quantities_of(kind: type) -> dict[str, Read]:
    """The fields of a dataclass that an entry gives, with how each is read."""
    hints = get_type_hints(kind, include_extras=True)
    annotated = {each.name: getattr(hints[each.name], "__metadata__", ()) for each in fields(kind)}
    return {name: found[0] for name, found in annotated.items() if found}


def read_quantities(
    kind: type[_Kind],
    entry: Entry,
    required: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
    **others: Any,
) -> _Kind:
    """A dataclass of limits.

    Args:
        kind: the dataclass; its annotated fields are read from the entry.
        entry: of the spec.
        required: fields that the entry has besides, and must have.
        optional: those that it may have.
        others: fields of the dataclass that are not read.

    Raises:
        SpecError: a field is unknown, missing or outside of its bounds; the text names file, line,
            field and value.
    """
    own, with_default = quantities_of(kind), _fields_with_default(kind)
    entry.check_keys(
        (*required, *(name for name in own if name not in with_default)),
        (*optional, *(name for name in own if name in with_default)),
    )
    values = {name: read(entry, name) for name, read in own.items() if entry.has(name)}
    return kind(**values, **others)


def _fields_with_default(kind: type) -> set[str]:
    return {each.name for each in fields(kind) if each.default is not MISSING}
