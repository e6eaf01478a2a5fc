"""Reads rank pages, hostile ones too: with pread, and an error that names the field."""

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lockstep_catalogue.vocabulary import Clock
from lockstep_records.page.identity import (
    PageError,
    Values,
    check_length,
    has_valid_checksum,
    read_identity,
    unpack,
)
from lockstep_records.page.layout import (
    HEARTBEAT,
    HEARTBEAT_OFFSET,
    IDENTITY,
    PERIODIC,
    PERIODIC_OFFSETS,
    PHASES,
    RING_OFFSET,
    ROW,
    ROW_NUMBERS,
    SLOT,
    SLOT_OFFSETS,
)
from lockstep_records.page.lock import close_page, open_page
from lockstep_records.page.section import Section

__all__ = [
    "Page",
    "PageError",
    "PageReader",
    "Values",
    "newest_rows",
    "read_newest",
    "read_page",
    "read_ring",
    "read_rows",
    "unpack",
]
# Of a row: its number, and its checksum at the end.
_NUMBER_AND_CHECKSUM = struct.Struct(f"<I{ROW.offsets['checksum'] - 4}xQ")
_SEQUENCE = struct.Struct("<Q")  # the first field of a slot
_MOST_READS = 4  # a writer stores into one slot at a time, in well under a microsecond


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """Identity, heartbeat and newest valid slot of one page at one moment.

    Attributes:
        identity: fields of the identity section; texts decoded, unused mesh axes left out.
        state: fields of the slot; unknown ones are None, arrays are dicts by item.
        periodic: fields of the periodic slot, in the same form.
        phase: phase that the last heartbeat began.
        progress_ns: monotonic time of that heartbeat.
    """

    path: Path
    identity: Values
    state: Values
    periodic: Values
    phase: str
    progress_ns: int

    def wall_seconds(self, monotonic_ns: int) -> float:
        """A monotonic time of this page as seconds since the epoch, by its clock pair."""
        offset = self.identity["start_wall_ns"] - self.identity["start_monotonic_ns"]
        return float(monotonic_ns + offset) / 1e9

    @property
    def clock(self) -> Clock:
        """Whose clock its totals are by, but for steps that the device's times missed."""
        return "device" if self.periodic["device_steps"] else "host"

    @property
    def progress_wall_seconds(self) -> float:
        """Wall clock of the last heartbeat, in seconds since the epoch."""
        return self.wall_seconds(self.progress_ns)


@contextmanager
def _opened(path: Path, owner: int | None = None) -> Iterator[int]:
    try:
        descriptor = open_page(path, owner)
    except OSError as error:
        raise PageError("io", f"page {path} cannot be opened: {error.strerror}") from error
    try:
        yield descriptor
    finally:
        close_page(descriptor)


def _read_slots(descriptor: int, section: Section, offsets: tuple[int, int]) -> list[bytes]:
    """The valid slots; reads again while one is being written, so that states never go back."""
    valid: list[bytes] = []
    # The slot that was read as damaged may just have been in writing; the other one is then older.
    for _ in range(_MOST_READS):
        slots = [os.pread(descriptor, section.size, at) for at in offsets]
        valid = [data for data in slots if has_valid_checksum(section, data)] or valid
        if len(valid) == sum(map(_is_begun, slots)):
            break
    return valid


def _is_begun(slot: bytes) -> bool:
    """Whether the slot was ever written; one of zeros is not waited for."""
    return slot[: _SEQUENCE.size] != bytes(_SEQUENCE.size)


class PageReader:
    """Reads one page repeatedly; sections whose bytes have not changed are not unpacked again.

    Args:
        path: of the page; the file may be replaced between two reads.
        owner: user id that the file must have besides that of its folder.
    """

    def __init__(self, path: Path, owner: int | None = None) -> None:
        self._path, self._owner = path, owner
        self._unpacked: dict[str, tuple[bytes, Values]] = {}

    def read(self) -> Page:
        """Identity and newest state; reads a few kilobytes whatever the ring's size.

        Raises:
            PageError: the page cannot be read; the text names the field.
        """
        path = self._path
        with _opened(path, self._owner) as descriptor:
            try:
                identity = self._identity(descriptor)
                state = self._newer(descriptor, SLOT, SLOT_OFFSETS)
                periodic = self._newer(descriptor, PERIODIC, PERIODIC_OFFSETS)
                heartbeat = os.pread(descriptor, HEARTBEAT.size, HEARTBEAT_OFFSET)
                (word,) = struct.unpack("<Q", heartbeat)
            except (OSError, struct.error) as error:
                raise PageError("io", f"page {path} cannot be read: {error}") from error
        code = word & 15
        if code >= len(PHASES):
            raise PageError("identity", f"page {path}: phase code {code} is not known")
        return Page(
            path=path,
            identity=identity,
            state=state,
            periodic=periodic,
            phase=PHASES[code],
            progress_ns=word >> 4,
        )

    def _identity(self, descriptor: int) -> Values:
        data = os.pread(descriptor, IDENTITY.size, 0)
        values = self._values(IDENTITY, data, lambda: read_identity(data, self._path))
        check_length(descriptor, self._path, values["row_count"])
        return values

    def _newer(self, descriptor: int, section: Section, offsets: tuple[int, int]) -> Values:
        valid = _read_slots(descriptor, section, offsets)
        if not valid:
            raise PageError(
                "checksum", f"page {self._path}: neither {section.name} has a valid checksum"
            )
        data = max(valid, key=_SEQUENCE.unpack_from)
        return self._values(section, data, lambda: unpack(section, data))

    def _values(self, section: Section, data: bytes, unpack_data: Callable[[], Values]) -> Values:
        previous = self._unpacked.get(section.name)
        if previous is None or previous[0] != data:
            previous = self._unpacked[section.name] = (data, unpack_data())
        return previous[1]


def read_page(path: Path) -> Page:
    """Identity and newest state of a page that is read once; see ``PageReader.read``.

    Raises:
        PageError: the page cannot be read; the text names the field.
    """
    return PageReader(path).read()


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
    steps, view, checksum_at = page.state["steps"], memoryview(data), ROW.offsets["checksum"]
    numbers = list(_NUMBER_AND_CHECKSUM.iter_unpack(view[: rows * ROW.size]))
    valid = []
    # A row is written before the state that counts it: one more may be there.
    for number in range(max(0, steps - rows), steps + 1):
        at = number % rows * ROW.size
        if numbers[number % rows] == (
            number % ROW_NUMBERS,
            zlib.crc32(view[at : at + checksum_at]),
        ):
            valid.append(view[at : at + ROW.size])
    return b"".join(valid)


def read_newest(page: Page, count: int) -> bytes:
    """The newest valid rows of a page, at most ``count``, as ``read_ring`` gives them.

    Reads only those rows, for readers that poll many pages.

    Raises:
        PageError: the file has gone or cannot be read.
    """
    rows, steps = page.identity["row_count"], page.state["steps"]
    valid = []
    with _opened(page.path) as descriptor:
        for first, last in _contiguous_ranges(max(0, steps - min(count, rows)), steps, rows):
            try:
                data = os.pread(
                    descriptor, (last - first) * ROW.size, RING_OFFSET + first % rows * ROW.size
                )
            except OSError as error:
                raise PageError("io", f"page {page.path} cannot be read: {error}") from error
            for number in range(first, first + len(data) // ROW.size):
                at = (number - first) * ROW.size
                row_number, checksum = _NUMBER_AND_CHECKSUM.unpack_from(data, at)
                row = data[at : at + ROW.size]
                is_it = row_number == number % ROW_NUMBERS
                if is_it and checksum == zlib.crc32(row[: ROW.offsets["checksum"]]):
                    valid.append(row)
    return b"".join(valid)


def newest_rows(page: Page, count: int) -> list[Values]:
    """The newest valid rows as dicts by field name; none of a page that has gone meanwhile."""
    try:
        return _unpack_rows(read_newest(page, count))
    except PageError:
        return []


def _contiguous_ranges(first: int, last: int, rows: int) -> Iterator[tuple[int, int]]:
    """Row numbers from ``first`` up to ``last`` (exclusive), in ranges contiguous in the ring."""
    wrap = last - last % rows
    if first < wrap < last:
        yield first, wrap
        yield wrap, last
    elif first < last:
        yield first, last


def read_rows(page: Page) -> list[Values]:
    """The valid rows of a page, oldest first, as dicts by field name.

    Raises:
        PageError: the file has gone or has shrunk since ``page`` was read.
    """
    return _unpack_rows(read_ring(page))


def _unpack_rows(data: bytes) -> list[Values]:
    return [unpack(ROW, data[at : at + ROW.size]) for at in range(0, len(data), ROW.size)]
