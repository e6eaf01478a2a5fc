"""Reads files, plain or compressed with gzip, in bounded blocks, so a gzip bomb fills no memory."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

_GZIP = b"\x1f\x8b"
_BLOCK_BYTES = 1 << 20
MAX_BYTES = 1 << 30


def blocks(path: Path, max_bytes: int = MAX_BYTES) -> Iterator[bytes]:
    """The unpacked content in blocks.

    Raises:
        ValueError: the content is over ``max_bytes``, or the compressed stream is damaged.
        OSError: the file cannot be read.
    """
    with path.open("rb") as stream:
        is_packed = stream.read(2) == _GZIP
    num_bytes = 0
    with gzip.open(path) if is_packed else path.open("rb") as stream:
        while True:
            try:
                block = stream.read(_BLOCK_BYTES)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise ValueError(
                    f"{path} is cut short or damaged ({error}); copy it again"
                ) from error
            if not block:
                return
            num_bytes += len(block)
            if num_bytes > max_bytes:
                raise ValueError(f"{path} unpacks to more than {max_bytes:,} bytes; split it")
            yield block


def content(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The unpacked content; raises as ``blocks``."""
    return b"".join(blocks(path, max_bytes))


def head(path: Path, size: int = 1 << 16) -> bytes:
    """The first ``size`` unpacked bytes; what could be read of them when the file is damaged."""
    begin = b""
    try:
        for block in blocks(path):
            begin += block
            if len(begin) >= size:
                break
    except (OSError, ValueError):
        return begin[:size]
    return begin[:size]


def files_of(path: Path, max_files: int = 1 << 17) -> list[Path]:
    """The file itself, or the plain files of a folder by name, without hidden ones.

    Raises:
        ValueError: the folder holds more than ``max_files``.
        OSError: the folder cannot be read.
    """
    if not path.is_dir():
        return [path]
    files = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    if len(files) > max_files:
        raise ValueError(f"{path} holds {len(files):,} files; at most {max_files:,} are read")
    return files
