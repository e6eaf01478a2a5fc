"""Writes files into a store so that no reader meets a part of one."""

from collections.abc import Iterator
from typing import Any

# protocols under which a reader sees a file while it is being written
_SHOWS_PARTIAL_FILES = {"file", "local", "sftp", "ssh", "smb", "hdfs"}
_MAX_PIPED_BYTES = 16 << 20


def put_file(files: Any, target: str, chunks: Iterator[bytes], size: int) -> None:
    """Writes a file of so many bytes into an fsspec file system; raises OSError.

    Object stores show a file when it is complete; elsewhere, and where it is large, it is written
    under another name and moved.
    """
    folder, _, name = target.rpartition("/")
    files.makedirs(folder, exist_ok=True)
    protocol = files.protocol
    names = {protocol} if isinstance(protocol, str) else set(protocol)
    if not _SHOWS_PARTIAL_FILES & names and size <= _MAX_PIPED_BYTES:
        files.pipe_file(target, b"".join(chunks))
        return
    temporary_path = f"{folder}/.{name}.part"
    with files.open(temporary_path, "wb") as file:
        for chunk in chunks:
            file.write(chunk)
    files.mv(temporary_path, target)
