"""Files as they are, gzip and zstd among them: a stream of bounded pieces, never the whole file."""

import gzip
import importlib
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from lockstep_records.distribution import install_hint

CHUNK_BYTES = 4 << 20
MOST_BYTES = 256 << 30
"""What a reader takes of one file after decompression; more is a bomb, or wants cutting first."""
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class TruncatedStreamError(ValueError):
    """The compressed file ends, or breaks, before its own end; what came before was given."""


def open_plain(path: Path) -> BinaryIO:
    """The file's content; compression is told by its first bytes, not by its name.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is zstd and the package that reads it is not installed.
    """
    with path.open("rb") as file:
        magic = file.read(4)
    if magic.startswith(_GZIP):
        return cast("BinaryIO", gzip.open(path))
    if magic == _ZSTD:
        try:
            zstandard = importlib.import_module("zstandard")
        except ImportError:
            raise ValueError(
                f"{path} is compressed by zstd, and the package zstandard is missing;"
                f" {install_hint('reports')} or decompress the file"
            ) from None
        reader = zstandard.ZstdDecompressor().stream_reader(
            path.open("rb"), read_across_frames=True
        )
        return cast("BinaryIO", reader)
    return path.open("rb")


def chunks(path: Path, size: int = CHUNK_BYTES, most: int = MOST_BYTES) -> Iterator[bytes]:
    """The content in pieces that end with a line's end, but for the last and for endless lines.

    Raises:
        OSError: the file cannot be read.
        TruncatedStreamError: its compression is broken; all that could be read came before. A zstd
            file that was cut short does not tell, and counts as whole.
        ValueError: zstd without its package, or more than ``most`` bytes came out of it.
    """
    rest, total = b"", 0
    pieces = _pieces(path, size)
    while True:
        try:
            piece = next(pieces, b"")
        except TruncatedStreamError:
            yield rest
            raise
        total += len(piece)
        if not piece or total > most:
            break
        cut = piece.rfind(b"\n") + 1
        if not cut and len(rest) + len(piece) < 2 * size:
            rest += piece
            continue
        yield rest + piece[:cut]
        rest = piece[cut:]
    if rest:
        yield rest
    if total > most:
        raise ValueError(f"{path} holds more than {most} bytes; cut it before it is read")


def head_of(path: Path, size: int) -> bytes:
    """The first bytes of the content; fewer where it is shorter or broken.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is zstd and the package that reads it is not installed.
    """
    try:
        return next(_pieces(path, size), b"")[:size]
    except TruncatedStreamError:
        return b""


def _pieces(path: Path, size: int) -> Iterator[bytes]:
    """Small reads, so that a break in the compression costs nothing of what came before it."""
    broken: Exception | None = None
    with open_plain(path) as file:
        while broken is None:
            gathered: list[bytes] = []
            room = size
            try:
                while room > 0 and (part := file.read1(room)):  # type: ignore[attr-defined]  # all three have it
                    gathered.append(part)
                    room -= len(part)
            except _breaks() as error:
                broken = error
            if gathered:
                yield b"".join(gathered)
            elif broken is None:
                return
    raise TruncatedStreamError(f"{path} breaks off inside its compression") from broken


def _breaks() -> tuple[type[Exception], ...]:
    """What the decompressors raise; zstandard's own error only where it has been loaded."""
    known: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile)
    zstandard = sys.modules.get("zstandard")
    return known if zstandard is None else (*known, zstandard.ZstdError)
