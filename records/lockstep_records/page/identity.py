"""Unpacks sections and the identity of a rank page, hostile until each field is checked."""

import os
import zlib
from pathlib import Path
from typing import Any

from lockstep_records.page.layout import (
    IDENTITY,
    MAGIC,
    MAX_ROWS,
    MESH_AXES,
    PERIODIC,
    ROW,
    SLOT,
    VERSION,
    page_bytes,
)
from lockstep_records.page.section import Section

Values = dict[str, Any]


class PageError(ValueError):
    """A page that cannot be read.

    Attributes:
        reason: one of version, truncated, identity, checksum, io.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def unpack(section: Section, data: bytes) -> Values:
    """A section as a dict by field name; unknown optional fields are None."""
    flat = section.struct.unpack_from(data)
    values: Values = {}
    for name, begin, end, items in section.spans:
        if end - begin == 1:
            values[name] = flat[begin]
        else:
            numbers = flat[begin:end]
            values[name] = dict(zip(items, numbers, strict=False)) if items else list(numbers)
    for name, bit in section.presence.items():
        if not values["present"] & bit:
            array = section.arrays.get(name)
            (values if array is None else values[array])[name] = None
    return values


def has_valid_checksum(section: Section, data: bytes) -> bool:
    """Whether a section is intact, by its checksum."""
    checksum_at = section.offsets["checksum"]
    if len(data) < section.size:
        return False
    return zlib.crc32(data[:checksum_at]) == int.from_bytes(
        data[checksum_at : section.size], "little"
    )


def read_identity(data: bytes, path: Path) -> Values:
    """The fields of the identity; texts decoded, unused mesh axes left out.

    Raises:
        PageError: one of the fields is invalid; the message names it.
    """
    if len(data) < IDENTITY.size:
        raise PageError(
            "truncated",
            f"page {path} has {len(data)} bytes, its identity alone takes {IDENTITY.size}",
        )
    values = unpack(IDENTITY, data)
    if values["magic"] != MAGIC:
        raise PageError(
            "identity", f"{path} is not a rank page: magic is {values['magic']!r}, not {MAGIC!r}"
        )
    if values["version"] != VERSION:
        raise PageError(
            "version",
            f"page {path} has format version {values['version']}, this reader wants {VERSION}",
        )
    if not has_valid_checksum(IDENTITY, data):
        raise PageError("checksum", f"page {path}: the checksum of the identity does not match")
    _check_sizes(path, values)
    return _decode(values, path)


def _check_sizes(path: Path, values: Values) -> None:
    sizes = {"row_bytes": ROW.size, "slot_bytes": SLOT.size, "periodic_bytes": PERIODIC.size}
    for name, expected in sizes.items():
        if values[name] != expected:
            raise PageError(
                "identity",
                f"page {path}: {name} is {values[name]}, version {VERSION} has {expected}",
            )
    rows = values["row_count"]
    if not 1 <= rows <= MAX_ROWS:
        raise PageError(
            "identity", f"page {path}: row_count is {rows}, at most {MAX_ROWS} is allowed"
        )


def check_length(descriptor: int, path: Path, rows: int) -> None:
    """Checks the size of a file against its number of rows.

    Raises:
        PageError: the file is shorter or longer.
    """
    size = os.fstat(descriptor).st_size
    if size != page_bytes(rows):
        raise PageError(
            "truncated", f"page {path} has {size} bytes, {rows} rows need {page_bytes(rows)}"
        )


def _decode(values: Values, path: Path) -> Values:
    for field in IDENTITY.fields:
        if field.code.endswith("s") and field.name != "magic":
            try:
                values[field.name] = values[field.name].rstrip(b"\0").decode()
            except UnicodeDecodeError as error:
                raise PageError("identity", f"page {path}: {field.name} is not UTF-8") from error
            # Texts end in logs, labels and terminals.
            if not values[field.name].isprintable():
                raise PageError("identity", f"page {path}: {field.name} holds control characters")
    if not 0 <= values["rank"] < values["world_size"]:
        raise PageError(
            "identity",
            f"page {path}: rank {values['rank']} is outside its world_size {values['world_size']}",
        )
    values["mesh"] = {axis: values.pop(axis) for axis in MESH_AXES}
    values["mesh"] = {axis: index for axis, index in values["mesh"].items() if index >= 0}
    return values
