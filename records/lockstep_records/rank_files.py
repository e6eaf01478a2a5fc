"""Files beside a rank's page: traces that the rank was asked for, and what a hang left behind.

They lie in memory, on the page's tmpfs, until somebody fetches them.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from lockstep_records.atomic_file import write_atomically

_MAX_ANSWER_BYTES = 64 << 10


def write_rank_file(page: Path, suffix: str, data: bytes) -> Path:
    """Writes a file beside a page, in one move; readable by the group of the agent.

    Raises:
        OSError: the folder cannot be written.
    """
    path = page.with_suffix(suffix)
    write_atomically(path, data, mode=0o640)
    return path


def trace_path(page: Path, request: str) -> Path:
    """The trace of a rank, as torch.profiler writes it (Chrome's trace format)."""
    return page.with_name(f"{page.stem}.{request}.trace.json")


def answer_path(page: Path, request: str) -> Path:
    """What the rank answers to the request: what it cost, or why there is no trace."""
    return page.with_name(f"{page.stem}.{request}.answer.json")


def read_answer(page: Path, request: str) -> dict[str, Any] | None:
    """The rank's answer; None while there is none, and for one that is no JSON object."""
    try:
        with answer_path(page, request).open("rb") as file:
            answer = json.loads(file.read(_MAX_ANSWER_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def fetch(page: Path, request: str, folder: Path) -> Path | None:
    """Moves a rank's trace into a folder and deletes the answer; None when there is no trace.

    Raises:
        OSError: the trace cannot be moved.
    """
    trace = trace_path(page, request)
    moved = None
    if trace.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        moved = Path(shutil.move(trace, folder / trace.name))
    answer_path(page, request).unlink(missing_ok=True)
    return moved
