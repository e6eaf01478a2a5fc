"""Pages of the format before stay readable; what they have no field for is unknown."""

import zlib
from pathlib import Path

import pytest
from sample_pages import written_page

from lockstep_records.page.layout import (
    IDENTITY,
    PERIODIC,
    PERIODIC_OFFSETS,
    READABLE_VERSIONS,
    ROW,
    VERSION,
)
from lockstep_records.page.reader import read_page, read_rows


def rewrite_as(version: int, path: Path) -> None:
    """Makes a page that has no newer field what a writer of that version would have written."""
    data, section = bytearray(path.read_bytes()), PERIODIC.at(version)
    for name, value in {"version": version, "periodic_bytes": section.size}.items():
        at = IDENTITY.offsets[name]
        data[at : at + 4] = value.to_bytes(4, "little")
    body = IDENTITY.offsets["checksum"]
    data[body : body + 4] = zlib.crc32(data[:body]).to_bytes(4, "little")
    body = section.offsets["checksum"]
    for at in PERIODIC_OFFSETS:
        checksum = zlib.crc32(data[at : at + body])
        data[at + body : at + PERIODIC.size] = checksum.to_bytes(PERIODIC.size - body, "little")
    path.write_bytes(data)


@pytest.mark.parametrize("version", READABLE_VERSIONS[:-1])
def test_an_older_page_has_all_values_and_none_of_newer_fields(memory: Path, version: int) -> None:
    path = written_page(memory, steps=20, rows=16)
    page, rows = read_page(path), read_rows(read_page(path))
    rewrite_as(version, path)
    older = read_page(path)
    assert (older.identity["version"], page.identity["version"]) == (version, VERSION)
    assert older.state == page.state
    differing = {name for name in page.periodic if older.periodic[name] != page.periodic[name]}
    assert differing <= {"checksum"}
    assert read_rows(older) == rows
    for section, values in ((PERIODIC, [older.periodic]), (ROW, rows)):
        newer = {field.name for field in section.fields if field.since > version}
        assert {value[name] for value in values for name in newer} <= {None}
