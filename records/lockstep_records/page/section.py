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
        optional: a bit in the field ``present`` is set when the value is known.
        items: what each number of an array counts.
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

    Attributes:
        size: bytes that the fields take.
        presence: bit of each optional field in the field ``present``.
        spans: of each field the name, the begin and end among the unpacked numbers, and its items.
        codes: struct code by field.
        items: what an array counts, by field.
    """

    def __init__(self, name: str, help_: str, *fields: Field) -> None:
        self.name, self.help, self.fields = name, help_, fields
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
        optional = [field.name for field in fields if field.optional]
        self.codes = {field.name: field.code for field in fields}
        self.items = {field.name: field.items for field in fields}
        self.presence = {name: 1 << bit for bit, name in enumerate(optional)}

    def without(self, name: str) -> "Section":
        """The section as it was before a field was added."""
        return Section(self.name, self.help, *(f for f in self.fields if f.name != name))

    def word(self, name: str) -> int:
        """Index of a field in the section as an array of eight-byte words."""
        return self.offsets[name] // 8
