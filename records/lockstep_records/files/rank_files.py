"""Files beside a rank's page: traces that the rank was asked for, and what a hang left behind.

They lie in memory, on the page's tmpfs, until somebody fetches them.
"""

import json
import os
from pathlib import Path
from typing import Any

from lockstep_records.file_access.foreign_files import open_foreign, read_chunks, read_foreign
from lockstep_records.file_access.own_files import remove_from_folder, replace_own_file

_MAX_ANSWER_BYTES = 64 << 10
MAX_TRACE_BYTES = 4 << 30
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_rank_file(page: Path, suffix: str, data: bytes) -> Path:
    """Writes a file beside a page, in one move, readable by the group of the agent; or OSError."""
    path = page.with_suffix(suffix)
    replace_own_file(path, data)
    return path


def trace_path(page: Path, request: str) -> Path:
    """The trace of a rank, as torch.profiler writes it (Chrome's trace format)."""
    return page.with_name(f"{page.stem}.{request}.trace.json")


def answer_path(page: Path, request: str) -> Path:
    """What the rank answers to the request: what it cost, or why no trace was written."""
    return page.with_name(f"{page.stem}.{request}.answer.json")


def read_answer(page: Path, request: str) -> dict[str, Any] | None:
    """The rank's answer; None while none exists, and for one that is not a JSON object."""
    return read_object(answer_path(page, request), _MAX_ANSWER_BYTES)


def read_object(path: Path, max_bytes: int) -> dict[str, Any] | None:
    """The JSON object in a file; None without the file, and where it holds anything else."""
    try:
        document = json.loads(read_foreign(path, max_bytes))
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def fetch(page: Path, request: str, folder: Path) -> Path | None:
    """Moves a rank's trace into a folder and deletes the answer, if there is one; or OSError."""
    trace = trace_path(page, request)
    moved: Path | None = folder / trace.name
    try:
        with open_foreign(trace) as descriptor:
            folder.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(folder / trace.name, _NEW_FILE, 0o666), "wb") as file:
                file.writelines(read_chunks(descriptor, MAX_TRACE_BYTES))
        remove_from_folder(trace)
    except FileNotFoundError:
        moved = None
    remove_from_folder(answer_path(page, request))
    return moved
