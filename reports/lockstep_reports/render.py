"""Writes what was rendered: beside its place, then renamed, so that nobody meets half a file."""

import json
import os
from pathlib import Path

from lockstep_reports.report import Report, as_json


def json_text(report: Report) -> str:
    """The report as indented JSON, with a newline at its end."""
    return json.dumps(as_json(report), indent=2, allow_nan=False) + "\n"


def write_json(report: Report, path: Path) -> None:
    """Writes the JSON file.

    Raises:
        OSError: the file cannot be written; nothing is left behind.
    """
    _write(path, json_text(report))


def write_html(report: Report, path: Path) -> None:
    """Writes the page.

    Raises:
        OSError: the file cannot be written; nothing is left behind.
    """
    from lockstep_reports.html import as_html  # noqa: PLC0415  # 0.1 s that JSON need not wait for

    _write(path, as_html(report))


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
