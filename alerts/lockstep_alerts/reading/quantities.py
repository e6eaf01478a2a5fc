"""The types of the limits that an entry of the spec gives, and their one reader."""

from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, TypeVar, get_type_hints

from lockstep_alerts.reading.entry import Entry
from lockstep_alerts.reading.model import Duration


@dataclass(frozen=True, slots=True)
class Number:
    """A number greater than ``above`` and at most ``up_to``."""

    above: float
    up_to: float

    def read(self, entry: Entry, field: str) -> float:
        """The number; an entry refuses another value with its location."""
        return entry.number(field, self.above, self.up_to)


@dataclass(frozen=True, slots=True)
class Whole(Number):
    """The nearest whole number."""

    def read(self, entry: Entry, field: str) -> int:
        """The number, rounded."""
        return round(entry.number(field, self.above, self.up_to))


@dataclass(frozen=True, slots=True)
class Span:
    """A duration over which samples are compared: four scrapes at least."""

    def read(self, entry: Entry, field: str) -> Duration:
        """The duration."""
        return entry.window(field)


@dataclass(frozen=True, slots=True)
class Time:
    """Any duration."""

    def read(self, entry: Entry, field: str) -> Duration:
        """The duration."""
        return entry.duration(field)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the allowed words."""

    allowed: tuple[str, ...]

    def read(self, entry: Entry, field: str) -> str:
        """The word."""
        return entry.choice(field, *self.allowed)


@dataclass(frozen=True, slots=True)
class Words:
    """A text, or a list of them."""

    def read(self, entry: Entry, field: str) -> tuple[str, ...]:
        """The texts."""
        return entry.texts(field)


Quantity = Number | Span | Time | Choice | Words
Ratio = Annotated[float, Number(0, 1)]
Window = Annotated[Duration, Span()]

_Kind = TypeVar("_Kind")


def quantities_of(kind: type) -> dict[str, Quantity]:
    """The fields of a dataclass that an entry gives, with how each is read."""
    hints = get_type_hints(kind, include_extras=True)
    annotated = {each.name: getattr(hints[each.name], "__metadata__", ()) for each in fields(kind)}
    return {name: found[0] for name, found in annotated.items() if found}


def check_fields(
    kind: type, entry: Entry, required: tuple[str, ...] = (), optional: tuple[str, ...] = ()
) -> None:
    """Refuses a field that neither the dataclass nor the lists know, and one that is missing."""
    with_default = tuple(each.name for each in fields(kind) if each.default is not MISSING)
    own = tuple(quantities_of(kind))
    entry.check_keys(
        required + tuple(name for name in own if name not in with_default),
        optional + tuple(name for name in own if name in with_default),
    )


def read_quantities(kind: type[_Kind], entry: Entry, **others: Any) -> _Kind:
    """A dataclass of limits.

    Args:
        kind: the dataclass; its annotated fields are read from the entry.
        entry: of the spec.
        others: fields that are not read.

    Raises:
        SpecError: a value is outside of its bounds; the text names file, line, field and value.
    """
    values = {
        name: quantity.read(entry, name)
        for name, quantity in quantities_of(kind).items()
        if entry.has(name)
    }
    return kind(**values, **others)
