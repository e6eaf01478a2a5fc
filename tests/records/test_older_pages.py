"""Pages of the format before stay readable; what they have no field for is unknown."""

import zlib
from pathlib import Path

from lockstep_records.page.layout import IDENTITY, PERIODIC, PERIODIC_OFFSETS
from lockstep_records.page.reader import read_page, read_rows

from .sample_pages import written_page

_FIELD_BYTES = 8


def as_version_four(path: Path) -> None:
    """Makes a page of version 5 that has no run-queue wait what version 4 would have written."""
    data = bytearray(path.read_bytes())
    size = PERIODIC.size - _FIELD_BYTES
    for name, value in {"version": 4, "periodic_bytes": size}.items():
        at = IDENTITY.offsets[name]
        data[at : at + 4] = value.to_bytes(4, "little")
    body = IDENTITY.offsets["checksum"]
    data[body : body + 4] = zlib.crc32(data[:body]).to_bytes(4, "little")
    body = size - _FIELD_BYTES
    for at in PERIODIC_OFFSETS:
        checksum = zlib.crc32(data[at : at + body])
        data[at + body : at + body + 16] = checksum.to_bytes(16, "little")
    path.write_bytes(data)


def test_a_page_of_version_four_has_all_values_and_no_run_queue_wait(memory: Path) -> None:
    path = written_page(memory, steps=20, rows=16)
    page, rows = read_page(path), read_rows(read_page(path))
    as_version_four(path)
    older = read_page(path)
    assert older.identity["version"] == 4
    assert older.state == page.state
    differing = {name for name in page.periodic if older.periodic[name] != page.periodic[name]}
    assert differing <= {"checksum"}
    assert older.periodic["run_queue_seconds"] is None
    assert read_rows(older) == rows
    assert {row["run_queue_seconds"] for row in rows} == {None}
