"""A report as a trace for ui.perfetto.dev."""

import gzip
import json
from pathlib import Path

from lockstep_reports.document.model import Document
from lockstep_reports.document.timeline import RANKS_PROCESS, VERDICT_PROCESS, name_track


def render(document: Document, path: Path) -> bytes:
    """The trace as JSON, in gzip when the path ends in .gz; ValueError where nothing has a time."""
    events = [
        name_track("process_name", VERDICT_PROCESS, 0, "verdict"),
        name_track("process_name", RANKS_PROCESS, 0, "ranks"),
        *document.trace_events(),
    ]
    # Names of tracks without events make an empty timeline, which looks like a fault of the viewer.
    if all(event["ph"] == "M" for event in events):
        raise ValueError("the recording has no times, so it has no timeline; leave out --perfetto")
    payload = {"traceEvents": events, "displayTimeUnit": "ms"}
    text = json.dumps(payload, separators=(",", ":"), allow_nan=False).encode()
    # A time in the gzip header would make equal reports differ.
    return gzip.compress(text, mtime=0) if path.suffix == ".gz" else text
