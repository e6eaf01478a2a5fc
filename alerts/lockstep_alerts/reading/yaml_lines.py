"""YAML whose refusals name file and line: of every key of a mapping, or of every value."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from lockstep_alerts.reading.entry import Fields, SpecError


class _Loader(yaml.SafeLoader):
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


def load(path: Path) -> object:
    """The document of a file; every mapping in it is a ``Fields``.

    Raises:
        SpecError: the file cannot be read, is not YAML, has a key twice or several documents.
    """
    documents = load_all(path)
    if len(documents) > 1:
        raise SpecError(f"spec {path} is not YAML: it holds several documents; write one")
    return documents[0] if documents else None


def load_all(path: Path) -> list[object]:
    """Every document of a file; every mapping in them is a ``Fields``.

    Raises:
        SpecError: the file cannot be read, is not YAML, or has a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return list(yaml.load_all(text, _Loader))  # a subclass of the safe loader
    except OSError as error:
        raise SpecError(
            f"spec {path} cannot be read: {error.strerror}; name one by --spec"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise SpecError(f"spec {path} is not YAML: {reason}") from error


@dataclass(frozen=True, slots=True)
class Located:
    """One value of a YAML file, with the file's name and the line on which the value begins."""

    path: Path
    node: yaml.Node

    @property
    def location(self) -> str:
        """``FILE:LINE``, with which a refusal begins."""
        return f"{self.path}:{self.node.start_mark.line + 1}"

    @property
    def value(self) -> object:
        """The value as YAML means it: text, a number, a list, a mapping."""
        return yaml.safe_load(yaml.serialize(self.node))

    def refuse(self, field: str, remedy: str) -> SpecError:
        """The error for this value; the caller raises it."""
        return SpecError(f"{self.location}: {field} {self.value!r}: {remedy}")

    def refuse_hidden(self, field: str, remedy: str) -> SpecError:
        """The error without the value, which may be a secret."""
        return SpecError(f"{self.location}: {field}: {remedy}")

    def fields(
        self, field: str, required: tuple[str, ...], optional: tuple[str, ...] = ()
    ) -> dict[str, "Located"]:
        """The fields of a mapping by name.

        Raises:
            SpecError: no mapping, a field that is not listed, is there twice or is missing.
        """
        allowed = required + optional
        if not isinstance(self.node, yaml.MappingNode):
            raise self.refuse(field, f"must be a mapping of {', '.join(allowed)}")
        fields: dict[str, Located] = {}
        for key_node, value_node in self.node.value:
            key = Located(self.path, key_node)
            name = str(key_node.value)
            if name not in allowed:
                raise key.refuse(field, f"unknown key; known are {', '.join(allowed)}")
            if name in fields:
                raise key.refuse(field, "is there twice; remove one")
            fields[name] = Located(self.path, value_node)
        for name in required:
            if name not in fields:
                raise SpecError(f"{self.location}: {field}: {name} is missing; add it")
        return fields

    def items(self, field: str) -> Iterator["Located"]:
        """The values of a list.

        Raises:
            SpecError: no list.
        """
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.refuse(field, "must be a list; begin each entry with a dash")
        return (Located(self.path, node) for node in self.node.value)

    def text(self, field: str) -> str:
        """Text that is not blank and stands on one line.

        Raises:
            SpecError: something else.
        """
        value = self.value
        if not isinstance(value, str) or not value.strip() or "\n" in value.strip():
            raise self.refuse(field, "write text on one line, in quotes where YAML reads another")
        return value.strip()

    def choice(self, field: str, *allowed: str) -> str:
        """One of the allowed words.

        Raises:
            SpecError: another one.
        """
        value = self.value
        if not isinstance(value, str) or value not in allowed:
            raise self.refuse(field, f"must be one of {', '.join(allowed)}")
        return value


def load_located(path: Path, option: str) -> Located:
    """The document of a file.

    Args:
        path: the file.
        option: by which it was named, for the refusal.

    Raises:
        SpecError: the file cannot be read, is not YAML or is empty.
    """
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)
    except OSError as error:
        raise SpecError(f"{option} {path}: {error.strerror}; name a file that is there") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise SpecError(f"{option} {path}: is not YAML: {reason}") from error
    if node is None:
        raise SpecError(f"{option} {path}: is empty; list the receivers in it")
    return Located(path, node)
