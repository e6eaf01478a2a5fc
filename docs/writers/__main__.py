"""Writes them: ``PYTHONPATH=docs python -m writers spec``, then ``python -m writers pages``.

The first writes what alerts/slos.yaml decides outside of alerts/generated, the second the pages,
for which rules and boards must be there.
"""

import json
import sys
from pathlib import Path

from writers import (
    capacity,
    coverage,
    events,
    metrics,
    outcomes,
    page_format,
    report,
    speakers,
    spec_files,
)

_DOCS = Path("docs")


def _render_pages() -> dict[Path, str]:
    return {
        _DOCS / "capacity.md": capacity.render(),
        _DOCS / "coverage.md": coverage.render(),
        _DOCS / "metrics.md": metrics.render(),
        _DOCS / "outcomes.md": outcomes.render(),
        _DOCS / "security.md": speakers.render(),
        _DOCS / "formats/format.md": page_format.render(),
        _DOCS / "formats/events.md": events.markdown_page(),
        _DOCS / "formats/events.schema.json": json.dumps(events.schema(), indent=2) + "\n",
        _DOCS / "formats/report.md": report.markdown_page(),
        _DOCS / "formats/report.schema.json": json.dumps(report.schema(), indent=2) + "\n",
    }


if __name__ == "__main__":
    for path, text in {"spec": spec_files.render, "pages": _render_pages}[sys.argv[1]]().items():
        path.write_text(text, encoding="utf-8")
