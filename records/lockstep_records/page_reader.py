"""Reads rank pages, hostile ones too: with pread, no lock, and an error that names the field."""

import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep_records.layout import (
    IDENTITY,
    MAGIC,
    MAX_ROWS,
    MESH_AXES,
    PHASES,
    PULSE,
    PULSE_OFFSET,
    RING_OFFSET,
    ROW,
    SELDOM,
    SELDOM_OFFSETS,
    SLOT,
    SLOT_OFFSETS,
    VERSION,
    page_bytes,
)
from lockstep_records.section import Section

Values = dict[str, Any]
# Of a row: its number, and its checksum at the end.
_NUMBER_AND_SEAL = struct.Struct(f"<Q{ROW.offsets['checksum'] - 8}xI")
_SEQUENCE = struct.Struct("<Q")  # the first field of a slot
_LOOKS = 4  # a writer stores into one slot at a time, and for well under a microsecond


class PageError(ValueError):
    """A page that cannot be read.

    Attributes:
        reason: one of version, truncated, identity, checksum, io.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """Identity, pulse and newest valid slot of one page at one moment.

    Attributes:
        identity: fields of the identity section; texts decoded, unused mesh axes left out.
        state: fields of the slot; unknown ones are None, arrays are dicts by item.
        seldom: fields of the seldom slot, in the same way.
        phase: phase that the last mark began.
        progress_ns: monotonic time of that mark.
    """

    path: Path
    identity: Values
    state: Values
    seldom: Values
    phase: str
    progress_ns: int

    def wall_seconds(self, monotonic_ns: int) -> float:
        """A monotonic time of this page as seconds since the epoch, by its clock pair."""
        offset = self.identity["start_wall_ns"] - self.identity["start_monotonic_ns"]
        return float(monotonic_ns + offset) / 1e9

    @property
    def progress_wall_seconds(self) -> float:
        """Wall clock of the last mark."""
        return self.wall_seconds(self.progress_ns)


def unpack(section: Section, data: bytes) -> Values:
    """A section as a dict by field name; unknown optional fields are None."""
    flat = iter(section.struct.unpack_from(data))
    values: Values = {}
    for field in section.fields:
        if field.count > 1:
            many = [next(flat) for _ in range(field.count)]
            values[field.name] = dict(zip(field.items, many, strict=True)) if field.items else many
        else:
            values[field.name] = next(flat)
    for name, bit in section.presence.items():
        if not values["present"] & bit:
            values[name] = None
    return values


def _sealed(section: Section, data: bytes) -> bool:
    seal = section.offsets["checksum"]
    if len(data) < section.size:
        return False
    return zlib.crc32(data[:seal]) == int.from_bytes(data[seal : section.size], "little")


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise PageError("io", f"page {path} cannot be opened: {error.strerror}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read_identity(descriptor: int, path: Path) -> Values:
    data = os.pread(descriptor, IDENTITY.size, 0)
    if len(data) < IDENTITY.size:
        raise PageError(
            "truncated",
            f"page {path} has {len(data)} bytes, its identity alone takes {IDENTITY.size}",
        )
    values = unpack(IDENTITY, data)
    if values["magic"] != MAGIC:
        raise PageError(
            "identity", f"{path} is no rank page: magic is {values['magic']!r}, not {MAGIC!r}"
        )
    if values["version"] != VERSION:
        raise PageError(
            "version",
            f"page {path} has format version {values['version']}, this reader knows {VERSION}",
        )
    if not _sealed(IDENTITY, data):
        raise PageError("checksum", f"page {path}: the checksum of the identity does not match")
    _check_sizes(descriptor, path, values)
    return _decoded(values, path)


_SIZES = (("row_bytes", ROW.size), ("slot_bytes", SLOT.size), ("seldom_bytes", SELDOM.size))


def _check_sizes(descriptor: int, path: Path, values: Values) -> None:
    for name, right in _SIZES:
        if values[name] != right:
            raise PageError(
                "identity", f"page {path}: {name} is {values[name]}, version {VERSION} has {right}"
            )
    rows = values["row_count"]
    if not 1 <= rows <= MAX_ROWS:
        raise PageError(
            "identity", f"page {path}: row_count is {rows}, at most {MAX_ROWS} is allowed"
        )
    size = os.fstat(descriptor).st_size
    if size != page_bytes(rows):
        raise PageError(
            "truncated", f"page {path} has {size} bytes, {rows} rows need {page_bytes(rows)}"
        )


def _decoded(values: Values, path: Path) -> Values:
    for field in IDENTITY.fields:
        if field.code.endswith("s") and field.name != "magic":
            try:
                values[field.name] = values[field.name].rstrip(b"\0").decode()
            except UnicodeDecodeError as error:
                raise PageError("identity", f"page {path}: {field.name} is not UTF-8") from error
            if not values[field.name].isprintable():
                raise PageError("identity", f"page {path}: {field.name} holds control characters")
    if not 0 <= values["rank"] < values["world_size"]:
        raise PageError(
            "identity",
            f"page {path}: rank {values['rank']} is outside its world_size {values['world_size']}",
        )
    values["mesh"] = {axis: values.pop(axis) for axis in MESH_AXES}
    values["mesh"] = {axis: at for axis, at in values["mesh"].items() if at >= 0}
    return values


def _read_newer(descriptor: int, path: Path, section: Section, offsets: tuple[int, int]) -> Values:
    """The newer slot; looks again while one is being written, so that states never go back."""
    valid: list[bytes] = []
    for _ in range(_LOOKS):
        slots = [os.pread(descriptor, section.size, at) for at in offsets]
        valid = [data for data in slots if _sealed(section, data)] or valid
        if len(valid) == len(offsets):
            break
    if not valid:
        raise PageError("checksum", f"page {path}: neither {section.name} has a valid checksum")
    return unpack(section, max(valid, key=_SEQUENCE.unpack_from))


def read_page(path: Path) -> Page:
    """Identity and newest state of a page; reads a few kilobytes whatever the ring's size.

    Raises:
        PageError: the page cannot be read; the text names the field.
    """
    with _opened(path) as descriptor:
        try:
            identity = _read_identity(descriptor, path)
            state = _read_newer(descriptor, path, SLOT, SLOT_OFFSETS)
            seldom = _read_newer(descriptor, path, SELDOM, SELDOM_OFFSETS)
            mark = os.pread(descriptor, PULSE.size, PULSE_OFFSET)
            (word,) = struct.unpack("<Q", mark)
        except (OSError, struct.error) as error:
            raise PageError("io", f"page {path} cannot be read: {error}") from error
    code = word & 15
    if code >= len(PHASES):
        raise PageError("identity", f"page {path}: phase code {code} is not known")
    return Page(
        path=path,
        identity=identity,
        state=state,
        seldom=seldom,
        phase=PHASES[code],
        progress_ns=word >> 4,
    )


def read_ring(page: Page) -> bytes:
    """The valid rows of a page, oldest first, as packed bytes of ``ROW.size`` each.

    The newest row may be one ahead of ``page.state`` when the rank died between the two; it counts
    when its checksum does. A row overwritten or torn meanwhile is left out.

    Raises:
        PageError: the file has gone or has shrunk since ``page`` was read.
    """
    rows = page.identity["row_count"]
    with _opened(page.path) as descriptor:
        try:
            data = os.pread(descriptor, rows * ROW.size, RING_OFFSET)
        except OSError as error:
            raise PageError("io", f"page {page.path} cannot be read: {error}") from error
    if len(data) < rows * ROW.size:
        raise PageError(
            "truncated", f"page {page.path} has shrunk: {len(data)} bytes of ring are left"
        )
    steps, view, seal = page.state["steps"], memoryview(data), ROW.offsets["checksum"]
    told = list(_NUMBER_AND_SEAL.iter_unpack(view[: rows * ROW.size]))
    kept = []
    for number in range(max(0, steps - rows), steps + 1):
        at = number % rows * ROW.size
        if told[number % rows] == (number, zlib.crc32(view[at : at + seal])):
            kept.append(view[at : at + ROW.size])
    return b"".join(kept)


def read_newest(page: Page, count: int) -> bytes:
    """The newest valid rows of a page, at most ``count``, as ``read_ring`` gives them.

    Reads only those rows, for who looks at many pages again and again.

    Raises:
        PageError: the file has gone or cannot be read.
    """
    rows, steps = page.identity["row_count"], page.state["steps"]
    kept = []
    with _opened(page.path) as descriptor:
        for first, last in _pieces(max(0, steps - min(count, rows)), steps, rows):
            try:
                data = os.pread(
                    descriptor, (last - first) * ROW.size, RING_OFFSET + first % rows * ROW.size
                )
            except OSError as error:
                raise PageError("io", f"page {page.path} cannot be read: {error}") from error
            for number in range(first, first + len(data) // ROW.size):
                at = (number - first) * ROW.size
                told, seal = _NUMBER_AND_SEAL.unpack_from(data, at)
                row = data[at : at + ROW.size]
                if told == number and seal == zlib.crc32(row[: ROW.offsets["checksum"]]):
                    kept.append(row)
    return b"".join(kept)


def _pieces(first: int, last: int, rows: int) -> Iterator[tuple[int, int]]:
    """Row numbers ``first`` to ``last`` (left out) in pieces that lie together in the ring."""
    wrap = last - last % rows
    if first < wrap < last:
        yield first, wrap
        yield wrap, last
    elif first < last:
        yield first, last


def read_rows(page: Page) -> list[Values]:
    """The valid rows of a page, oldest first, as dicts by field name."""
    data = read_ring(page)
    return [unpack(ROW, data[at : at + ROW.size]) for at in range(0, len(data), ROW.size)]
