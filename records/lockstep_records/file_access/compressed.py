"""Content of files, plain or compressed by gzip or zstd: blocks of bounded size, never all at once.

Compression is recognised by the first bytes of a file, not by its name.
"""

import gzip
import importlib
import io
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from lockstep_records.distribution import install_hint

BLOCK_BYTES = 4 << 20
MOST_BYTES = 256 << 30
"""Most content of one file that is read; more is a decompression bomb, or should be split first."""
_MOST_FOLD, _FREE_BYTES = 500, 256 << 20
"""Logs are compressed 5 to 100 times; more of a big one is a decompression bomb."""
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


_MOST_LOSS = 256 << 10
"""By which compression may make content longer: a file of many tiny members takes long to read."""


def most_content(size: int) -> int:
    """Bytes that a compressed file of that size may hold."""
    return max(_FREE_BYTES, _MOST_FOLD * size)


class _Compressed(io.FileIO):
    """A compressed file, refused where it gives less than it takes."""

    given = 0

    def readinto(self, buffer: Any) -> int:
        """Reads as a file."""
        if self.tell() > _MOST_LOSS + self.given * 1.02:
            raise ValueError(f"{self.name} is longer than its content; decompress it first")
        return super().readinto(buffer) or 0


class TruncatedStreamError(ValueError):
    """The compressed stream ends, or breaks, before its own end; what came before was given."""


def blocks(path: Path, size: int = BLOCK_BYTES, most: int = MOST_BYTES) -> Iterator[bytes]:
    """The content in blocks of ``size`` bytes; the last one may be shorter.

    Raises:
        OSError: the file cannot be read.
        TruncatedStreamError: its compression is broken; all that could be read came before. A zstd
            file that was cut short does not show it, and counts as complete.
        ValueError: zstd without its package, more than ``most`` bytes of content, or a file that
            expands more than a log does.
    """
    total = 0
    bomb = most_content(path.stat().st_size)
    broken: Exception | None = None
    source = _Compressed(path)
    with source, _open(path, source) as file:
        while broken is None:
            parts: list[bytes] = []
            room = size
            try:
                # Small reads, so that a break in the compression costs nothing of what precedes it.
                while room > 0 and (part := file.read1(room)):  # type: ignore[attr-defined]  # all three have it
                    parts.append(part)
                    room -= len(part)
                    source.given += len(part)
            except _stream_errors() as error:
                broken = error
            if not parts and broken is None:
                return
            total += size - room
            if total > most:
                raise ValueError(f"{path} holds more than {most:,} bytes; split it")
            if total > bomb:
                raise ValueError(
                    f"{path} expands to more than {_MOST_FOLD} times its size; if it is a log,"
                    " decompress it first"
                )
            if parts:
                yield b"".join(parts)
    raise TruncatedStreamError(f"{path} breaks off inside its compression") from broken


def line_blocks(path: Path, size: int = BLOCK_BYTES, most: int = MOST_BYTES) -> Iterator[bytes]:
    """The content in blocks of whole lines, but for endless lines; raises as ``blocks``."""
    rest = b""
    try:
        for block in blocks(path, size, most):
            end = block.rfind(b"\n") + 1
            if not end and len(rest) + len(block) < 2 * size:
                rest += block
                continue
            yield rest + block[:end]
            rest = block[end:]
    except ValueError:
        if rest:
            yield rest
        raise
    if rest:
        yield rest


def read_content(path: Path, most: int = MOST_BYTES) -> bytes:
    """The whole content; raises as ``blocks``."""
    return b"".join(blocks(path, most=most))


def read_head(path: Path, size: int) -> bytes:
    """The first bytes of the content, fewer of a short or broken one; OSError, or ValueError."""
    try:
        return next(blocks(path, size), b"")[:size]
    except TruncatedStreamError:
        return b""


def _open(path: Path, source: _Compressed) -> BinaryIO:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic.startswith(_GZIP):
        return cast("BinaryIO", gzip.GzipFile(fileobj=io.BufferedReader(source)))
    # The standard library reads zstd from Python 3.14 on only.
    if magic == _ZSTD:
        try:
            # Only an extra installs it, and most files need it not.
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


def _stream_errors() -> tuple[type[Exception], ...]:
    """What the decompressors raise; zstandard's own error only where it has been loaded."""
    errors: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile)
    zstandard = sys.modules.get("zstandard")
    return errors if zstandard is None else (*errors, zstandard.ZstdError)
