"""Fields and sections, of which the table of the page's format consists, with their offsets."""

import struct
from dataclasses import dataclass, replace

OLDEST_VERSION = 4  # of the pages that are read


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a section.

    Attributes:
        code: of Python's ``struct``.
        help: meaning, in a few words.
        count: length of an array; 1 for a single number.
        optional: a bit in the field ``present`` is set when the value is known.
        items: what each number of an array counts.
        since: version of the page from which on it has the field.
        earlier: last version with another code, and that code.
    """

    name: str
    code: str
    help: str
    count: int = 1
    optional: bool = False
    items: tuple[str, ...] = ()
    since: int = OLDEST_VERSION
    earlier: tuple[int, str] = (0, "")

    @property
    def format(self) -> str:
        """The struct format of the whole field."""
        if self.code.endswith("s"):
            return self.code
        return f"{self.count}{self.code}" if self.count > 1 else self.code


class Section:
    """Fields in a row, with their offsets in bytes from the section's start.

    A field of a later version takes bytes that were zero before and is optional: all else is where
    it was. The last field is the checksum of those before it, unless there is only one.

    Args:
        size: bytes that the section takes in every version; its end is reserved. 0: as it needs.

    Attributes:
        size: bytes that the fields take.
        presence: bit of each optional field in the field ``present``.
        spans: of each field the name, the begin and end among the unpacked numbers, and its items.
        codes: struct code by field.
        items: what an array counts, by field.
    """

    def __init__(self, name: str, help_: str, *fields: Field, size: int = 0) -> None:
        unused = size - sum(struct.calcsize("<" + field.format) for field in fields)
        if size and unused:
            fields = (*fields[:-1], Field("reserved", f"{unused}s", "zero"), fields[-1])
        self.name, self.help, self.fields, self._fixed_size = name, help_, fields, size
        self.struct = struct.Struct("<" + "".join(field.format for field in fields))
        self.size = self.struct.size
        self.offsets: dict[str, int] = {}
        self.spans: list[tuple[str, int, int, tuple[str, ...]]] = []
        offset = number = 0
        for field in fields:
            self.spans.append((field.name, number, number + field.count, field.items))
            number += field.count
            size = struct.calcsize("<" + field.format)
            width = struct.calcsize("<" + field.code) if not field.code.endswith("s") else 1
            # Words are stored one by one into mapped memory; only an aligned store is never torn.
            assert offset % width == 0, f"{name}.{field.name} is not aligned"
            self.offsets[field.name] = offset
            offset += size
        self.names = tuple(self.offsets)
        in_order = sorted(fields, key=lambda field: field.since)  # a bit keeps its meaning
        optional = [field.name for field in in_order if field.optional]
        self.codes = {field.name: field.code for field in fields}
        self.items = {field.name: field.items for field in fields}
        self.presence = {name: 1 << bit for bit, name in enumerate(optional)}

    @property
    def version(self) -> int:
        """The version that added its newest field."""
        return max(field.since for field in self.fields)

    def at(self, version: int) -> "Section":
        """The section as pages of a version have it."""
        fields = (
            replace(field, code=field.earlier[1]) if version <= field.earlier[0] else field
            for field in self.fields
            if field.since <= version and field.name != "reserved"
        )
        return Section(self.name, self.help, *fields, size=self._fixed_size)

    def word(self, name: str) -> int:
        """Index of a field in the section as an array of eight-byte words."""
        return self.offsets[name] // 8
