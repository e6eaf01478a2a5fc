"""YAML whose mappings know the line of each key."""

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


def load(path: Path, option: str = "--spec") -> object:
    """The document of a file, every mapping of which is a ``Fields``; None of an empty file.

    Raises:
        SpecError: the file cannot be read, is not YAML, has a key twice or several documents.
    """
    try:
        text = path.read_text(encoding="utf-8")
        documents = list(yaml.load_all(text, _Loader))  # a subclass of the safe loader
    except OSError as error:
        raise SpecError(f"{option} {path}: {error.strerror}; name a file that is there") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"{option} {path}: is not YAML: {' '.join(str(error).split())}") from error
    if len(documents) > 1:
        raise SpecError(f"{option} {path}: holds several documents; write one")
    return documents[0] if documents else None
