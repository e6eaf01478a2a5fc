"""Small files of /sys: their value, or None where the kernel does not tell."""

import re
from pathlib import Path

_WHOLE = re.compile(r"-?[0-9]{1,20}")


def read_text(path: Path) -> str | None:
    """The first 4,096 characters of a file without its line end, None when it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(4096).strip()
    except OSError:
        return None


def read_count(path: Path) -> int | None:
    """The whole number in a file, None when there is none or it is negative."""
    text = read_text(path)
    if text is None or not _WHOLE.fullmatch(text):
        return None
    value = int(text)
    return value if value >= 0 else None
