"""An entry of slos.yaml, read field by field; what cannot be meant is refused in one sentence."""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import click
import yaml

from lockstep_alerts.reading.model import Duration
from lockstep_catalogue.limits import DECLARED
from lockstep_catalogue.windows import MIN_SCRAPES, ScrapeWindows
from lockstep_records.text.documents import DocumentError
from lockstep_records.text.yaml_documents import SafeLoader, read_yaml

_SCRAPES = re.compile(r"([1-9][0-9]{0,2}) scrapes?")


def nearest(name: object, names: Iterable[str]) -> str:
    """A question that names what was meant; empty where nothing is near."""
    near = difflib.get_close_matches(str(name), names, 1)
    return f"did you mean {near[0]}? " if near else ""


class SpecError(click.UsageError):
    """The spec is not what it should be; the text names file, field, value and remedy.

    A command that raises it prints the text, and ends with status 2.
    """


class Fields(dict[str, object]):
    """A mapping of a YAML file, with the line of each key, and the file of those of another."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}
        self.paths: dict[str, Path] = {}


class Entry:
    """Checked access to the fields of an entry, at a ``position`` such as ``alerts[3]``."""

    def __init__(
        self, path: Path, position: str, fields: Fields, windows: ScrapeWindows = DECLARED
    ) -> None:
        self.path, self.windows = path, windows
        self._position = position
        self._fields = fields

    def location(self, field: str = "") -> str:
        """File, line and position, with which a refusal begins."""
        line = self._fields.lines.get(field, self._fields.line)
        path = self._fields.paths.get(field, self.path)
        return f"{path}:{line}: {self._position}".removesuffix(": ")

    def refuse(self, field: str, remedy: str) -> SpecError:
        """The error for a field; the caller raises it."""
        return SpecError(f"{self.location(field)}: {field} {self._fields.get(field)!r}: {remedy}")

    def refuse_secret(self, field: str, remedy: str) -> SpecError:
        """The error without the value, which may be a secret."""
        return SpecError(f"{self.location(field)}: {field}: {remedy}")

    def has(self, field: str) -> bool:
        """Whether the entry has the field."""
        return field in self._fields

    def entries(self, field: str) -> "Iterator[Entry]":
        """The entries of a list of mappings."""
        items = self._fields.get(field)
        if not isinstance(items, list) or not items:
            raise self.refuse(field, "must be a list of entries")
        for index, item in enumerate(items):
            if not isinstance(item, Fields):
                raise self.refuse(field, f"entry {index} must be a mapping of fields")
            yield Entry(
                self.path, f"{self._position}.{field}[{index}]".lstrip("."), item, self.windows
            )

    def entry(self, field: str) -> "Entry":
        """The entry that a field holds."""
        item = self._fields.get(field)
        if not isinstance(item, Fields):
            raise self.refuse(field, "must be a mapping of fields")
        return Entry(self.path, f"{self._position}.{field}".lstrip("."), item, self.windows)

    def fields(self) -> Iterator[str]:
        """The names of its fields, in their order."""
        return iter(self._fields)

    def check_keys(self, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
        """Refuses a field that is not listed, and a required one that is missing."""
        for field in self._fields:
            if field not in required + optional:
                allowed = required + optional
                guess = nearest(field, allowed)
                raise self.refuse(field, f"unknown key; {guess}known are {', '.join(allowed)}")
        for field in required:
            if field not in self._fields:
                raise SpecError(f"{self.location()}: {field} is missing; add it")

    def text(self, field: str, pattern: re.Pattern[str] | None = None, remedy: str = "") -> str:
        """Text that is not blank and matches the pattern; the remedy says what does."""
        value = self._fields.get(field)
        if not isinstance(value, str) or not value.strip():
            raise self.refuse(field, "write text")
        if pattern is not None and not pattern.match(value):
            raise self.refuse(field, remedy or f"must match {pattern.pattern}")
        return value.strip()

    def texts(self, field: str) -> tuple[str, ...]:
        """A text, a number as its text, or a list of them."""
        value = self._fields.get(field)
        values = value if isinstance(value, list) else [value]
        if not values or not all(isinstance(each, str | int | float) for each in values):
            raise self.refuse(field, "write text, or a list of texts")
        return tuple(f"{each:g}" if isinstance(each, float) else str(each) for each in values)

    def optional_text(self, field: str, pattern: re.Pattern[str]) -> str | None:
        """The same; None where the field is left out."""
        return self.text(field, pattern) if field in self._fields else None

    def choice(self, field: str, *allowed: str) -> str:
        """One of the allowed words."""
        value = self._fields.get(field)
        if not isinstance(value, str) or value not in allowed:
            remedy = f"must be one of {', '.join(allowed)}; {nearest(value, allowed)}"
            raise self.refuse(field, remedy.rstrip("; "))
        return value

    def number(self, field: str, above: float, up_to: float) -> float:
        """A number greater than ``above`` and at most ``up_to``."""
        value = self._fields.get(field)
        # YAML's true is an int in Python.
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(field, "write a number")
        if not above < value <= up_to:
            raise self.refuse(field, f"must be above {above:g} and at most {up_to:g}")
        return float(value)

    def duration(self, field: str) -> Duration:
        """A duration such as ``10s`` or ``2 scrapes``."""
        value = self._fields.get(field)
        if not isinstance(value, str):
            raise self.refuse(field, "write a duration such as 10s or 2 scrapes")
        if scrapes := _SCRAPES.fullmatch(value):
            return Duration(f"{int(scrapes[1]) * self.windows.scrape_seconds}s")
        try:
            return Duration(value)
        except ValueError as error:
            raise SpecError(f"{self.location(field)}: {field}: {error}") from error

    def optional_duration(self, field: str) -> Duration | None:
        """The same, of a scrape at least; None where the field is left out."""
        return self._span(field, 1) if field in self._fields else None

    def window(self, field: str) -> Duration:
        """A duration over which samples are compared: four scrapes at least."""
        return self._span(field, MIN_SCRAPES)

    def _span(self, field: str, at_least_scrapes: int) -> Duration:
        duration = self.duration(field)
        least_seconds = at_least_scrapes * self.windows.scrape_seconds
        if duration.seconds < least_seconds:
            raise self.refuse(
                field,
                f"holds fewer than {at_least_scrapes} scrapes, one every "
                f"{self.windows.scrape_seconds}s; write {least_seconds}s or more, "
                "or shorten scrape_interval",
            )
        return duration


class _Loader(SafeLoader):
    """The safe loader, whose mappings are ``Fields``."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> Fields:
    fields = Fields(line=node.start_mark.line + 1)
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        if not isinstance(key, str):
            raise yaml.YAMLError(f"line {line}: key {key!r} must be text")
        if key in fields:
            raise yaml.YAMLError(f"line {line}: {key} is already in line {fields.lines[key]}")
        fields[key] = loader.construct_object(value_node, deep=True)
        fields.lines[key] = line
    return fields


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load(path: Path, option: str = "--spec") -> object:
    """The document of a file, its mappings as ``Fields``, None of an empty one; or SpecError."""
    try:
        return read_yaml(path, _Loader)
    except DocumentError as error:
        raise SpecError(f"{option} {path}: {error}") from error


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
    """A dataclass of limits, whose annotated fields are read from the entry.

    Beside them the entry must have the fields in ``required`` and may have those in ``optional``;
    ``others`` are fields that are not read. A SpecError names file, line, field and value.
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
