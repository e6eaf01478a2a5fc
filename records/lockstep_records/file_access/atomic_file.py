"""Writes a file beside its place and renames it, so that a reader meets the old file or the new."""

import os
import stat
import tempfile
from pathlib import Path


def write_atomically(
    path: Path, data: bytes | str, *, mode: int = 0o644, durable: bool = False
) -> None:
    """Replaces a file in one move; nothing is left beside it when that fails. Or OSError.

    A device or a pipe, such as ``/dev/null`` or ``/dev/stdout``, is written to and stays.

    Args:
        path: in a folder that exists.
        data: whole content; text is written as UTF-8.
        mode: permissions of the new file, whatever the umask is.
        durable: also waits until file and folder are on the disk, so that a power cut leaves one of
            the two.
    """
    content = data.encode() if isinstance(data, str) else data
    if _is_stream(path):
        _write_to_stream(path, content)
        return
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


def _is_stream(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def _write_to_stream(path: Path, content: bytes) -> None:
    # A pipe that nobody reads is refused, not waited for.
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on the disk; a rename is not durable before."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
