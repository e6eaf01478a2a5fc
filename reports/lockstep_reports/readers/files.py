"""The files of a recording, and the first bytes by which a reader recognises one."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

from lockstep_records.file_access.compressed import read_head

MAX_BYTES = 1 << 28
"""Most content that a reader takes of one file, after decompression."""
MAX_FILES, _MAX_SNIFFED_FILES = 1 << 17, 64


def head(path: Path, size: int = 1 << 16) -> bytes:
    """The first ``size`` bytes of a file's content; those before the break when it is damaged."""
    try:
        return read_head(path, size)
    except (OSError, ValueError):
        return b""


def files_of(path: Path) -> list[Path]:
    """The file itself, or the plain files of a folder by name, without hidden ones.

    Raises ValueError for more than ``MAX_FILES``, and OSError.
    """
    if not path.is_dir():
        return [path]
    files = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    if len(files) > MAX_FILES:
        raise ValueError(f"{path} holds {len(files):,} files; at most {MAX_FILES:,} are read")
    return files


def holds_any(path: Path, is_one: Callable[[Path], bool]) -> bool:
    """Whether a file, or one of the first files of a folder that hold anything, is of a kind."""
    full = (file for file in files_of(path) if file.stat().st_size)
    return any(map(is_one, islice(full, _MAX_SNIFFED_FILES)))
