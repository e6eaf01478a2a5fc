"""Reads rank pages, hostile ones too: with pread, and an error that names the field."""

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, starmap
from pathlib import Path
from typing import Any, NamedTuple

from lockstep_catalogue.vocabulary import Clock
from lockstep_records.page.layout import (
    HEARTBEAT,
    HEARTBEAT_OFFSET,
    IDENTITY,
    MAGIC,
    MAX_ROWS,
    MESH_AXES,
    PERIODIC,
    PERIODIC_OFFSETS,
    PHASES,
    PLUGIN_PAGE,
    RING_OFFSET,
    ROW,
    ROW_NUMBERS,
    SLOT,
    SLOT_OFFSETS,
    VERSION,
    Section,
    page_bytes,
)
from lockstep_records.page.lock import close_page, open_page

Values = dict[str, Any]
Names = frozenset[str] | None


class PageError(ValueError):
    """A page that cannot be read, for version, truncated, identity, checksum or io."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def unpack(section: Section, data: bytes, names: Names = None) -> Values:
    """A section as a dict by field name, or some of its fields; unknown optional ones are None."""
    flat = section.struct.unpack_from(data)
    values: Values = {}
    for name, begin, end, items in _list_spans(section, names):
        if end - begin == 1:
            values[name] = flat[begin]
        else:
            numbers = flat[begin:end]
            values[name] = dict(zip(items, numbers, strict=False)) if items else list(numbers)
    if section.presence:
        for name, array in _list_absent(section, values["present"], names):
            (values if array is None else values[array])[name] = None
    return values


@lru_cache(maxsize=64)
def _list_spans(section: Section, names: Names) -> list[tuple[str, int, int, tuple[str, ...]]]:
    always = {"present"}
    return [span for span in section.spans if names is None or span[0] in names | always]


@lru_cache(maxsize=256)
def _list_absent(section: Section, present: int, names: Names) -> list[tuple[str, str | None]]:
    """Fields of a section that are unknown, with their arrays; most pages have the same ones."""
    absent = [name for name, bit in section.presence.items() if not present & bit]
    found = [(name, section.arrays.get(name)) for name in absent]
    return [(name, array) for name, array in found if names is None or (array or name) in names]


def has_valid_checksum(section: Section, data: bytes) -> bool:
    """Whether a section is intact, by its checksum."""
    checksum_at = section.offsets["checksum"]
    if len(data) < section.size:
        return False
    return zlib.crc32(data[:checksum_at]) == int.from_bytes(
        data[checksum_at : section.size], "little"
    )


def unpack_head(section: Section, data: bytes, subject: str, magic: bytes, version: int) -> Values:
    """The first section of a file, which is intact; a PageError begins with the subject."""
    if len(data) < section.size:
        raise PageError(
            "truncated",
            f"{subject} has {len(data)} bytes, its {section.name} alone takes {section.size}",
        )
    values = unpack(section, data)
    if values["magic"] != magic:
        raise PageError("identity", f"{subject}: magic is {values['magic']!r}, not {magic!r}")
    if values["version"] != version:
        raise PageError(
            "version",
            f"{subject} has format version {values['version']}, this reader wants {version}",
        )
    if not has_valid_checksum(section, data):
        raise PageError("checksum", f"{subject}: the checksum of the {section.name} does not match")
    return values


def read_identity(data: bytes, path: Path) -> Values:
    """The fields of the identity, decoded, without unused mesh axes; a PageError names one."""
    values = unpack_head(IDENTITY, data, f"page {path}", MAGIC, VERSION)
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
    """Checks the size of a file against its number of rows; or PageError."""
    size = os.fstat(descriptor).st_size
    if size != page_bytes(rows):
        raise PageError(
            "truncated", f"page {path} has {size} bytes, {rows} rows need {page_bytes(rows)}"
        )


_TEXTS = [each.name for each in IDENTITY.fields if each.code[-1] == "s" and each.name != "magic"]


def _decode(values: Values, path: Path) -> Values:
    for name in _TEXTS:
        try:
            values[name] = values[name].rstrip(b"\0").decode()
        except UnicodeDecodeError as error:
            raise PageError("identity", f"page {path}: {name} is not UTF-8") from error
        # Texts end in logs, labels and terminals.
        if not values[name].isprintable():
            raise PageError("identity", f"page {path}: {name} holds control characters")
    if not 0 <= values["rank"] < values["world_size"]:
        raise PageError(
            "identity",
            f"page {path}: rank {values['rank']} is outside its world_size {values['world_size']}",
        )
    if values["attempt"] < 0:
        raise PageError("identity", f"page {path}: attempt {values['attempt']} is below 0")
    values["mesh"] = {axis: values.pop(axis) for axis in MESH_AXES}
    values["mesh"] = {axis: index for axis, index in values["mesh"].items() if index >= 0}
    return values


_CHECKSUM_AT = ROW.offsets["checksum"]  # of a row, behind all that it covers
_CONTENT = struct.Struct(f"{_CHECKSUM_AT}s{ROW.size - _CHECKSUM_AT}x")
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
    def is_of_plugin(self) -> bool:
        """Whether NCCL's plugin wrote it: it tells own work from waits, and no phases."""
        return self.path.name.endswith(PLUGIN_PAGE)

    @property
    def clock(self) -> Clock:
        """Whose clock its totals are by, but for steps that the device's times missed."""
        return "device" if self.periodic["device_steps"] else "host"

    @property
    def progress_wall_seconds(self) -> float:
        """Wall clock of the last heartbeat, in seconds since the epoch."""
        return self.wall_seconds(self.progress_ns)


class PageHead(NamedTuple):
    """The valid sections of a page as bytes: all of it but the rows."""

    identity: bytes
    heartbeat: bytes
    state: bytes
    periodic: bytes


def page_of(
    head: PageHead, path: Path, state_names: Names = None, periodic_names: Names = None
) -> Page:
    """The page that had these sections, whatever lies at ``path`` now; a PageError names one.

    A page has hundreds of numbers: of the slots only some may be asked for.
    """
    for section, data in ((SLOT, head.state), (PERIODIC, head.periodic)):
        if not has_valid_checksum(section, data):
            raise PageError("checksum", f"page {path}: its {section.name} has no valid checksum")
    identity = read_identity(head.identity, path)
    state = unpack(SLOT, head.state, state_names)
    periodic = unpack(PERIODIC, head.periodic, periodic_names)
    return _make_page(path, identity, state, periodic, head.heartbeat)


def _make_page(
    path: Path, identity: Values, state: Values, periodic: Values, heartbeat: bytes
) -> Page:
    if len(heartbeat) < HEARTBEAT.size:
        raise PageError("truncated", f"page {path} ends before its heartbeat")
    (word,) = struct.unpack_from("<Q", heartbeat)
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

    The file may be replaced between two reads; it must be of ``owner``, and of its folder's.
    """

    def __init__(self, path: Path, owner: int | None = None) -> None:
        self._path, self._owner = path, owner
        self._unpacked: dict[str, tuple[bytes, Values]] = {}

    def read(self) -> Page:
        """Identity and newest state, in a few kilobytes whatever the ring's size; or PageError."""
        path, head = self._path, self.read_head()
        return _make_page(
            path,
            self._values(IDENTITY, head.identity, lambda: read_identity(head.identity, path)),
            self._values(SLOT, head.state, lambda: unpack(SLOT, head.state)),
            self._values(PERIODIC, head.periodic, lambda: unpack(PERIODIC, head.periodic)),
            head.heartbeat,
        )

    def read_head(self) -> PageHead:
        """The same as bytes; or PageError."""
        path = self._path
        with _opened(path, self._owner) as descriptor:
            try:
                identity = os.pread(descriptor, IDENTITY.size, 0)
                values = self._values(IDENTITY, identity, lambda: read_identity(identity, path))
                check_length(descriptor, path, values["row_count"])
                state = self._newer(descriptor, SLOT, SLOT_OFFSETS)
                periodic = self._newer(descriptor, PERIODIC, PERIODIC_OFFSETS)
                heartbeat = os.pread(descriptor, HEARTBEAT.size, HEARTBEAT_OFFSET)
            except OSError as error:
                raise PageError("io", f"page {path} cannot be read: {error}") from error
        return PageHead(identity, heartbeat, state, periodic)

    def _newer(self, descriptor: int, section: Section, offsets: tuple[int, int]) -> bytes:
        valid = _read_slots(descriptor, section, offsets)
        if not valid:
            raise PageError(
                "checksum", f"page {self._path}: neither {section.name} has a valid checksum"
            )
        return max(valid, key=_SEQUENCE.unpack_from)

    def _values(self, section: Section, data: bytes, unpack_data: Callable[[], Values]) -> Values:
        previous = self._unpacked.get(section.name)
        if previous is None or previous[0] != data:
            previous = self._unpacked[section.name] = (data, unpack_data())
        return previous[1]


def read_page(path: Path) -> Page:
    """Identity and newest state of a page that is read once; raises as ``PageReader.read``."""
    return PageReader(path).read()


def read_ring(page: Page) -> bytes:
    """The valid rows of a page, oldest first, as packed bytes of ``ROW.size`` each.

    The newest row may be one ahead of ``page.state`` when the rank died between the two; it counts
    when its checksum does. A row overwritten or torn meanwhile is left out.

    Raises:
        PageError: the file has gone or has shrunk since ``page`` was read.
    """
    return read_numbered(page, 0, page.state["steps"] + 1)


def read_numbered(page: Page, first: int, last: int) -> bytes:
    """The valid rows from number ``first`` up to ``last`` (exclusive); as ``read_ring``."""
    steps = page.state["steps"]
    # A row is written before the state that counts it: one more may be there.
    return _read_valid(page, max(first, steps - page.identity["row_count"]), min(last, steps + 1))


def read_newest(page: Page, count: int) -> bytes:
    """The newest valid rows of a page, at most ``count``, read alone; as ``read_ring``."""
    steps = page.state["steps"]
    return _read_valid(page, max(0, steps - min(count, page.identity["row_count"])), steps)


def _read_valid(page: Page, first: int, last: int) -> bytes:
    """The valid rows from number ``first`` up to ``last`` (exclusive), packed, oldest first."""
    rows, valid = page.identity["row_count"], []
    with _opened(page.path) as descriptor:
        while first < last:
            index = first % rows
            end = min(last, first + rows - index)  # then from the ring's begin
            size = (end - first) * ROW.size
            try:
                data = os.pread(descriptor, size, RING_OFFSET + index * ROW.size)
            except OSError as error:
                raise PageError("io", f"page {page.path} cannot be read: {error}") from error
            if len(data) < size:
                raise PageError("truncated", f"page {page.path} has shrunk since it was opened")
            valid.append(_select_valid(data, first))
            first = end
    return b"".join(valid)


def _select_valid(data: bytes, first: int) -> bytes:
    """Those of the rows from number ``first`` on that have their number and checksum."""
    memory, last = memoryview(data), first + len(data) // ROW.size
    checksums = memory.cast("Q")[_CHECKSUM_AT // 8 :: ROW.size // 8].tolist()
    numbers = memory.cast("I")[:: ROW.size // 4].tolist()
    of_content = [*starmap(zlib.crc32, _CONTENT.iter_unpack(data))]
    of_place = [number % ROW_NUMBERS for number in range(first, last)]
    if checksums == of_content and numbers == of_place:
        return data
    pairs = zip(checksums, of_content, numbers, of_place, strict=True)
    wrong = [at for at, (a, b, c, d) in enumerate(pairs) if a != b or c != d]
    bounds = [-1, *wrong, last - first]
    parts = (memory[(a + 1) * ROW.size : b * ROW.size] for a, b in pairwise(bounds))
    return b"".join(parts)


def newest_rows(page: Page, count: int) -> list[Values]:
    """The newest valid rows as dicts by field name; none of a page that has gone meanwhile."""
    try:
        return _unpack_rows(read_newest(page, count))
    except PageError:
        return []


def read_rows(page: Page) -> list[Values]:
    """The valid rows of a page, oldest first, as dicts by field name; raises as ``read_ring``."""
    return _unpack_rows(read_ring(page))


def _unpack_rows(data: bytes) -> list[Values]:
    return [unpack(ROW, data[at : at + ROW.size]) for at in range(0, len(data), ROW.size)]
