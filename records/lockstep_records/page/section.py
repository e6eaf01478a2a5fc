"""Fields and sections, of which the table of the page's format consists, with their offsets."""

import struct
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a section.

    Attributes:
        code: of Python's ``struct``.
        help: meaning, in a few words.
        count: length of an array; 1 for a single number.
        optional: a bit in the field ``present`` is set when the value is known; one for each item
            of an array.
        items: what each number of an array counts; an array may have room for more.
    """

    name: str
    code: str
    help: str
    count: int = 1
    optional: bool = False
    items: tuple[str, ...] = ()

    @property
    def format(self) -> str:
        """The struct format of the whole field."""
        if self.code.endswith("s"):
            return self.code
        return f"{self.count}{self.code}" if self.count > 1 else self.code


class Section:
    """Fields in a row, with their offsets in bytes from the section's start.

    The last field is the checksum of those before it, unless there is only one.

    Args:
        size: bytes of the section, with room before the checksum for optional fields that come;
            0: as the fields need.

    Attributes:
        size: bytes that the fields take.
        presence: bit in the field ``present`` by optional field, or by item of an optional array.
        spans: of each field the name, the begin and end among the unpacked numbers, and its items.
        codes: struct code by field.
        items: what an array counts, by field.
        arrays: field by item, of optional arrays.
    """

    def __init__(self, name: str, help_: str, *fields: Field, size: int = 0) -> None:
        unused = size - sum(struct.calcsize("<" + field.format) for field in fields)
        if size and unused:
            fields = (*fields[:-1], Field("reserved", f"{unused}s", "zero"), fields[-1])
        self.name, self.help, self.fields = name, help_, fields
        self.struct = struct.Struct("<" + "".join(field.format for field in fields))
        self.size = self.struct.size
        self.offsets: dict[str, int] = {}
        self.spans: list[tuple[str, int, int, tuple[str, ...]]] = []
        offset = number = 0
        for field in fields:
            if field.name != "reserved":
                self.spans.append((field.name, number, number + field.count, field.items))
            number += field.count
            width = struct.calcsize("<" + field.code) if not field.code.endswith("s") else 1
            # Words are stored one by one into mapped memory; only an aligned store is never torn.
            assert offset % width == 0, f"{name}.{field.name} is not aligned"
            self.offsets[field.name] = offset
            offset += struct.calcsize("<" + field.format)
        self.names = tuple(self.offsets)
        optional = (field.items or (field.name,) for field in fields if field.optional)
        self.arrays = {
            item: field.name for field in fields if field.optional for item in field.items
        }
        self.codes = {field.name: field.code for field in fields}
        self.items = {field.name: field.items for field in fields}
        self.presence = {
            name: 1 << bit for bit, name in enumerate(name for names in optional for name in names)
        }

    def word(self, name: str) -> int:
        """Index of a field in the section as an array of eight-byte words."""
        return self.offsets[name] // 8
