"""Kernel logs, which tell of a node and not of a job: one sentence says what they tell."""

import time
from collections.abc import Iterator
from pathlib import Path

from lockstep_catalogue.incidents import GPU_XID_INCIDENTS, XID_TABLE
from lockstep_outcomes.joblogs.clock import Clock
from lockstep_outcomes.joblogs.scan import Scan
from lockstep_records.file_access.compressed import line_blocks, read_head
from lockstep_records.kernel.incidents import Incidents
from lockstep_records.kernel.lines import Message, is_kernel_line, read_line
from lockstep_reports.readers import ReadOptions
from lockstep_reports.recording.recording import LogRecording
from lockstep_reports.wording import plural

_SNIFFED_BYTES, _MOST_NAMED, _ANY_YEAR = 1 << 14, 6, 2000
_SEVERITIES = ("fatal", "error", "notice")


def recognises(path: Path) -> bool:
    """Whether most lines at its beginning are the kernel's, and none tells of a step."""
    head = read_head(path, _SNIFFED_BYTES)
    lines = [line for line in head.decode(errors="replace").splitlines() if line[:1].strip()]
    if not lines or 2 * sum(map(is_kernel_line, lines)) < len(lines):
        return False
    scan = Scan(path.name, Clock(_ANY_YEAR))
    scan.add(head)
    return scan.milestones.work is None


def read(path: Path, options: ReadOptions) -> LogRecording:
    """Nothing to make a report from.

    Raises:
        ValueError: always; the sentence has the faults of the node, the worst first.
        OSError: the file cannot be read.
    """
    incidents = Incidents()
    incidents.ingest("kernel", _messages(path, options.now_seconds))
    worst_first = sorted(_faults(incidents))
    named = "; ".join(words for _, words in worst_first[:_MOST_NAMED])
    rest = f"; and {len(worst_first) - _MOST_NAMED} more" if len(worst_first) > _MOST_NAMED else ""
    raise ValueError(
        f"{path} is a kernel log, which tells of a node and not of a job: {named or 'no fault'}"
        f"{rest}; give the job's own output; the agent watches a node's log (--kmsg)"
    )


def _messages(path: Path, now_seconds: float) -> Iterator[Message]:
    before: Message | None = None
    for block in line_blocks(path):
        for line in block.decode(errors="replace").splitlines():
            message, _ = read_line(line, now_seconds or time.time(), before)
            before = message or before
            if message is not None:
                yield message


def _faults(incidents: Incidents) -> Iterator[tuple[int, str]]:
    """Severity and words of each kind of incident."""
    for (name, labels), count in incidents.counts.items():
        if not count.number:
            continue
        times = "" if count.number == 1 else f", {plural(count.number, 'time')}"
        if name == GPU_XID_INCIDENTS.name:
            address, _, number = labels
            xid = XID_TABLE.get(number)
            title = f"Xid {number}" if number[0].isdigit() else number.replace("_", " ")
            what = "" if xid is None else f" ({xid.name}; remedy: {xid.remedy.replace('_', ' ')})"
            severity = len(_SEVERITIES) if xid is None else _SEVERITIES.index(xid.severity)
            yield severity, f"{title}{what} of {address}{times}"
        else:
            words = " ".join(label.replace("_", " ") for label in labels)
            yield 1, f"{words}{times}"
