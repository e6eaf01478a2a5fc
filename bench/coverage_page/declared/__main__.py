"""Writes all pages: ``PYTHONPATH=bench python -m coverage_page.declared docs``."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from coverage_page.declared import events, metrics, outcomes, page_format, report

RENDER_BY_FILE: dict[str, Callable[[], str]] = {
    "metrics.md": metrics.render,
    "outcomes.md": outcomes.render,
    "formats/format.md": page_format.render,
    "formats/events.md": events.markdown_page,
    "formats/events.schema.json": lambda: json.dumps(events.schema(), indent=2) + "\n",
    "formats/report.md": report.markdown_page,
    "formats/report.schema.json": lambda: json.dumps(report.schema(), indent=2) + "\n",
}

if __name__ == "__main__":
    for name, render in RENDER_BY_FILE.items():
        (Path(sys.argv[1]) / name).write_text(render(), encoding="utf-8")
