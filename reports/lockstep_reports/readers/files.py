"""The files of a recording, and the first bytes by which a reader recognises one."""

from pathlib import Path

from lockstep_records.file_access.compressed import blocks

MAX_BYTES = 1 << 28
"""Most content that a reader takes of one file, after decompression."""


def head(path: Path, size: int = 1 << 16) -> bytes:
    """The first ``size`` bytes of a file's content; those before the break when it is damaged."""
    begin = b""
    try:
        for block in blocks(path, size):
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
