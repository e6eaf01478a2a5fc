"""Documents of YAML: counted, with what their aliases stand for, before a value is made."""

from pathlib import Path
from typing import Any

import yaml

from lockstep_records.text.documents import DocumentError, read_document

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # PyYAML that was built without its part in C
    from yaml import SafeLoader  # type: ignore[assignment]  # the same in Python

__all__ = ["SafeLoader", "check_yaml", "read_yaml"]
MAX_DEPTH, MAX_VALUES = 64, 50_000
_MAX_NUMBER_CHARACTERS = 100


def read_yaml(path: Path, loader: Any = SafeLoader) -> Any:
    """The value of a YAML file with one document, None of an empty one; or DocumentError."""
    text = read_document(path)
    check_yaml(text)
    try:
        return yaml.load(text, loader)  # noqa: S506  # a safe loader or a subclass
    except (yaml.YAMLError, ValueError) as error:
        raise DocumentError(f"it is not YAML: {_one_line(error)}") from error


def check_yaml(text: str) -> None:
    """Counts a YAML text without making a value of it; or DocumentError."""
    num_values, num_documents = 0, 0
    sizes: dict[str, int] = {}
    opened: list[tuple[str | None, int]] = []
    try:
        for event in yaml.parse(text, SafeLoader):
            if isinstance(event, yaml.CollectionEndEvent):
                anchor, begin = opened.pop()
                sizes[anchor or ""] = num_values - begin
                continue
            num_documents += isinstance(event, yaml.DocumentStartEvent)
            num_values += isinstance(event, yaml.NodeEvent)
            if isinstance(event, yaml.AliasEvent):
                if event.anchor not in sizes:
                    raise DocumentError(f"alias {event.anchor!r:.80} is inside its own value")
                num_values += sizes[event.anchor]
            elif isinstance(event, yaml.CollectionStartEvent):
                opened.append((event.anchor, num_values))
            elif isinstance(event, yaml.ScalarEvent):
                sizes[event.anchor or ""] = 1
                _check_scalar(event)
            if num_values > MAX_VALUES or len(opened) > MAX_DEPTH:
                raise DocumentError(
                    f"it holds more than {MAX_VALUES:,} values, or {MAX_DEPTH} in each other"
                )
    except yaml.YAMLError as error:
        raise DocumentError(f"it is not YAML: {_one_line(error)}") from error
    if num_documents > 1:
        raise DocumentError("it holds several documents; write one")


def _check_scalar(event: yaml.ScalarEvent) -> None:
    is_plain = event.implicit[0] and event.value[:1] in "+-.0123456789"
    if is_plain and len(event.value) > _MAX_NUMBER_CHARACTERS and " " not in event.value:
        raise DocumentError(f"{event.value[:20]}... is a number of {len(event.value):,} characters")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
