"""Where a rank leaves the traces it was asked for: beside its page, in memory, until fetched."""

import json
import shutil
from pathlib import Path
from typing import Any

_MAX_ANSWER_BYTES = 64 << 10


def trace_path(page: Path, request: str) -> Path:
    """The trace of a rank, as torch.profiler writes it (Chrome's trace format)."""
    return page.with_name(f"{page.stem}.{request}.trace.json")


def answer_path(page: Path, request: str) -> Path:
    """What the rank says of the request: what it cost, or why there is no trace."""
    return page.with_name(f"{page.stem}.{request}.answer.json")


def read_answer(page: Path, request: str) -> dict[str, Any] | None:
    """The rank's answer; None while there is none, and for one that makes no sense."""
    try:
        with answer_path(page, request).open("rb") as file:
            told = json.loads(file.read(_MAX_ANSWER_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) else None


def fetch(page: Path, request: str, folder: Path) -> Path | None:
    """Moves a rank's trace into a folder and forgets the answer; None when there is no trace."""
    trace = trace_path(page, request)
    moved = None
    if trace.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        moved = Path(shutil.move(trace, folder / trace.name))
    answer_path(page, request).unlink(missing_ok=True)
    return moved
