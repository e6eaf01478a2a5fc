"""Writes a file beside its place and renames it, so that a reader meets the old file or the new."""

import os
import tempfile
from pathlib import Path


def write_atomically(
    path: Path, data: bytes | str, *, mode: int = 0o644, durable: bool = False
) -> None:
    """Replaces a file in one move; nothing is left beside it when that fails.

    Args:
        path: in a folder that exists.
        data: whole content; text is written as UTF-8.
        mode: permissions of the new file, whatever the umask is.
        durable: also waits until file and folder are on the disk, so that a power cut leaves one
            of the two.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    content = data.encode() if isinstance(data, str) else data
    # The leading dot hides it from the globs of readers; the random part from other writers.
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
            # A rename may reach the disk before the content: a power cut would leave an empty file.
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        # After the rename there is nothing of this name any more.
        temporary.unlink(missing_ok=True)
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on the disk; a rename is not durable before."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
