"""Compressed files are read as what was compressed, in blocks, up to where they break."""

import gzip
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard

from lockstep_records.file_access.compressed import (
    TruncatedStreamError,
    blocks,
    line_blocks,
    read_content,
    read_head,
)

SIZE = 64
LINES = b"".join(b"step %05d of many\n" % number for number in range(400))
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "gzip of two members": lambda data: gzip.compress(data[:999]) + gzip.compress(data[999:]),
    "zstd": zstandard.compress,
    "zstd of frames, one of them empty": lambda data: (
        zstandard.compress(data[:999]) + zstandard.compress(b"") + zstandard.compress(data[999:])
    ),
}


@pytest.fixture(params=PACKERS)
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[bytes], Path]:
    """Writes a file, packed in one way or another, whose name does not tell how."""

    def write(data: bytes) -> Path:
        path = tmp_path / "any.log"
        path.write_bytes(PACKERS[request.param](data))
        return path

    return write


def read(stream: Iterator[bytes]) -> tuple[list[bytes], Exception | None]:
    """The blocks of a stream, and the error that ended it."""
    got: list[bytes] = []
    try:
        for block in stream:
            got.append(block)  # noqa: PERF402  # what came before the error counts
    except (ValueError, OSError) as error:
        return got, error
    return got, None


@pytest.mark.parametrize(
    "data", [LINES, LINES[:-1], b"", b"\n", b"\n\n\n", b"no line's end at all"], ids=len
)
def test_what_comes_out_is_what_went_in_and_blocks_end_with_a_line(
    packed: Callable[[bytes], Path], data: bytes
) -> None:
    got, error = read(line_blocks(packed(data), SIZE))
    assert (b"".join(got), error) == (data, None)
    assert all(block.endswith(b"\n") for block in got[:-1])
    assert all(0 < len(block) < 3 * SIZE for block in got)


def test_the_content_is_read_at_once_or_in_blocks_of_a_size(
    packed: Callable[[bytes], Path],
) -> None:
    path = packed(LINES)
    assert read_content(path) == LINES
    assert list(blocks(path, SIZE)) == [LINES[at : at + SIZE] for at in range(0, len(LINES), SIZE)]


def test_a_line_without_end_comes_in_blocks_too(packed: Callable[[bytes], Path]) -> None:
    data = b"x" * 5000 + b"\n" + LINES
    got, error = read(line_blocks(packed(data), SIZE))
    assert (b"".join(got), error) == (data, None)
    assert max(map(len, got)) < 3 * SIZE


@pytest.mark.parametrize("size", [0, 1, SIZE, len(LINES), len(LINES) + 1])
def test_a_head_is_as_long_as_asked_or_its_text(packed: Callable[[bytes], Path], size: int) -> None:
    assert read_head(packed(LINES), size) == LINES[:size]
    assert read_head(packed(b""), size) == b""


def test_the_most_that_is_taken_is_taken_and_one_byte_more_is_refused(
    packed: Callable[[bytes], Path],
) -> None:
    got, error = read(line_blocks(packed(LINES), SIZE, most=len(LINES)))
    assert (b"".join(got), error) == (LINES, None)
    path = packed(LINES)
    got, error = read(line_blocks(path, SIZE, most=len(LINES) - 1))
    assert str(error) == f"{path} holds more than {len(LINES) - 1:,} bytes; split it"
    assert b"".join(got) == LINES[: len(LINES) // SIZE * SIZE], "all blocks before were given"


BROKEN: dict[str, tuple[bytes, int]] = {
    "gzip, cut": (gzip.compress(LINES)[:-200], 1000),
    "gzip, cut in its head": (gzip.compress(LINES)[:5], 0),
    "gzip, changed within": (
        gzip.compress(LINES[:3000]) + gzip.compress(LINES[3000:])[:10] + b"\xff" * 99,
        3000,
    ),
    "gzip, then something else": (gzip.compress(LINES) + b"something else", len(LINES)),
    "gzip, of another checksum": (gzip.compress(LINES)[:-8] + bytes(8), len(LINES)),
    "zstd, then something else": (zstandard.compress(LINES) + b"something else", len(LINES)),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_of_a_broken_file_all_that_is_before_the_break_is_given(tmp_path: Path, kind: str) -> None:
    data, least = BROKEN[kind]
    path = tmp_path / "any.log"
    path.write_bytes(data)
    got, error = read(line_blocks(path, SIZE))
    assert isinstance(error, TruncatedStreamError), got
    assert str(error) == f"{path} breaks off inside its compression"
    assert LINES.startswith(b"".join(got))
    assert len(b"".join(got)) >= least
    assert LINES.startswith(read_head(path, SIZE))
    assert read_head(path, SIZE) or not least


def test_a_zstd_file_that_was_cut_gives_what_was_whole(tmp_path: Path) -> None:
    path = tmp_path / "any.log"
    path.write_bytes(zstandard.compress(LINES[:3000]) + zstandard.compress(LINES[3000:])[:-20])
    got, _ = read(line_blocks(path, SIZE))
    assert LINES.startswith(b"".join(got))
    assert len(b"".join(got)) >= 3000


def test_zstd_without_its_package_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "any.log"
    path.write_bytes(zstandard.compress(LINES))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    for reading in (lambda: list(line_blocks(path)), lambda: read_head(path, 9)):
        with pytest.raises(
            ValueError, match=r"zstandard is missing; run pip install '\.\[reports\]'"
        ):
            reading()


def test_a_file_of_members_that_give_less_than_they_take_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"") * 100_000)
    with pytest.raises(ValueError, match="longer than its content"):
        read_content(path)
    random = os.urandom(3 << 20)
    path.write_bytes(gzip.compress(random[: 1 << 20]) + gzip.compress(random[1 << 20 :]))
    assert read_content(path) == random
