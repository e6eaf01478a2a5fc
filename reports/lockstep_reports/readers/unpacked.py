"""Files as they are or packed by gzip, read in bounded blocks: a bomb is told, never swallowed."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

_GZIP = b"\x1f\x8b"
_BLOCK_BYTES = 1 << 20
MAX_BYTES = 1 << 30


def blocks(path: Path, most_bytes: int = MAX_BYTES) -> Iterator[bytes]:
    """The unpacked content in blocks.

    Raises:
        ValueError: it is more than ``most_bytes``, or the packing is damaged.
        OSError: the file cannot be read.
    """
    with path.open("rb") as plain:
        packed = plain.read(2) == _GZIP
    seen = 0
    with gzip.open(path) if packed else path.open("rb") as stream:
        while True:
            try:
                block = stream.read(_BLOCK_BYTES)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise ValueError(
                    f"{path} is cut short or damaged ({error}); copy it again"
                ) from error
            if not block:
                return
            seen += len(block)
            if seen > most_bytes:
                raise ValueError(f"{path} unpacks to more than {most_bytes:,} bytes; split it")
            yield block


def whole(path: Path, most_bytes: int = MAX_BYTES) -> bytes:
    """The unpacked content; raises as ``blocks``."""
    return b"".join(blocks(path, most_bytes))


def head(path: Path, size: int = 1 << 16) -> bytes:
    """The first unpacked bytes, to tell what a file is; empty when nothing can be read."""
    found = b""
    try:
        for block in blocks(path):
            found += block
            if len(found) >= size:
                break
    except (OSError, ValueError):
        return found[:size]
    return found[:size]


def files_of(path: Path, most: int = 1 << 17) -> list[Path]:
    """The file itself, or the plain files of a folder by name, hidden ones left out.

    Raises:
        ValueError: the folder holds more than ``most``.
        OSError: the folder cannot be read.
    """
    if not path.is_dir():
        return [path]
    found = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    if len(found) > most:
        raise ValueError(f"{path} holds {len(found):,} files; at most {most:,} are read")
    return found
