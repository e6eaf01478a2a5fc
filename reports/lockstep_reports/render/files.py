"""Writes what was rendered: beside its place, then renamed, so that nobody meets half a file."""

import json
import os
from pathlib import Path

from lockstep_reports.compare import Comparison, comparison_json
from lockstep_reports.incident import LogReport, log_json
from lockstep_reports.render.missing_reasons import untold
from lockstep_reports.report import Report, as_json


def json_text(report: Report | LogReport, comparison: Comparison | None = None) -> str:
    """The report as indented JSON, with a newline at its end."""
    told = log_json(report) if isinstance(report, LogReport) else as_json(report)
    told |= {
        "slo": None,
        "comparison": None if comparison is None else comparison_json(comparison),
        "unknown": untold(report),
    }
    return json.dumps(told, indent=2, allow_nan=False) + "\n"


def html_text(report: Report | LogReport, comparison: Comparison | None = None) -> str:
    """The report as one self-contained page."""
    if isinstance(report, LogReport):
        from lockstep_reports.render.incident_page import incident_html  # noqa: PLC0415  # as below

        return incident_html(report, comparison)
    from lockstep_reports.render.html import as_html  # noqa: PLC0415  # 0.1 s that JSON need not wait for

    return as_html(report, comparison)


def write_text(path: Path, text: str | bytes) -> None:
    """Writes a file whole or not at all.

    Raises:
        OSError: the file cannot be written, which it names; nothing is left behind.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(text.encode() if isinstance(text, str) else text)
        beside.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        beside.unlink(missing_ok=True)
