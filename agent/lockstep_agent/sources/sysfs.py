"""Folders, links and small files of /sys; what the kernel does not report is None or empty."""

import os
from pathlib import Path


def list_names(folder: str) -> list[str]:
    """The names in a folder, sorted, only those that can be a label; empty for a missing folder."""
    try:
        return sorted(name for name in os.listdir(folder) if name.isprintable())  # noqa: PTH208  # names only
    except (OSError, ValueError):
        return []


def link_target_name(path: str) -> str:
    """Last part of the target of a symbolic link; empty for a missing link."""
    try:
        name = os.readlink(path).rpartition("/")[2]  # noqa: PTH115  # text in, text out
    except (OSError, ValueError):
        return ""
    return name if name.isprintable() else ""


def read_text(path: Path) -> str | None:
    """The first 4,096 characters of a file, stripped; None for a file that cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(4096).strip()
    except OSError:
        return None
