"""Operation rows as people read them."""

from pathlib import Path

from lockstep_records.files.operations import KINDS, NAMES, OPERATION, read_operations
from lockstep_records.page.layout import MESH_AXES
from lockstep_records.page.reader import Values, unpack


def operation_values(path: Path) -> list[Values]:
    """The rows of a file by field name, with names for codes and None for what is unknown."""
    data, size = read_operations(path), OPERATION.size
    return [_named(unpack(OPERATION, data[at : at + size])) for at in range(0, len(data), size)]


def _named(values: Values) -> Values:
    values["operation"] = NAMES[values["operation"]]
    for name, names in (("kind", KINDS), ("axis", MESH_AXES)):
        values[name] = names[values[name]] if 0 <= values[name] < len(names) else None
    for name in ("micro_batch", "chunk"):
        values[name] = values[name] if values[name] >= 0 else None
    return values
