"""The trace of a job: ids that every rank, launcher and agent computes alike, with no exchange.

The trace id is that of the environment's W3C TRACEPARENT, else the first 16 bytes of SHA-256 over
``lockstep trace JOB_ID``. A span id is the first 8 bytes of SHA-256 over the trace id, the requeue
and the span's path. So a job has one trace over all its ranks, attempts and requeues, and a span
that is exported twice is the same span.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lockstep_records.file_access.foreign_files import open_foreign
from lockstep_records.file_access.own_files import open_own_file

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_REQUEUE = re.compile(r"[0-9]{1,9}")
TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
SPAN_ID = re.compile(r"(?!0{16})[0-9a-f]{16}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """The trace that the spans of one job belong to.

    Attributes:
        trace_id: 32 hexadecimal digits.
        parent_id: span outside the job that started it, 16 hexadecimal digits; None = the root.
        requeue: how often the scheduler has started the job again, from 0.
        sampled: the recording flag of TRACEPARENT; True without one.
    """

    trace_id: str
    parent_id: str | None = None
    requeue: int = 0
    sampled: bool = True

    def span_id(self, *path: object) -> str:
        """Id of a span by its path below the job: (), (attempt,), (attempt, rank), ..."""
        # hash() differs from process to process; every rank must compute the same id.
        text = "/".join(str(part) for part in (self.trace_id, self.requeue, *path))
        return hashlib.sha256(f"lockstep span {text}".encode()).hexdigest()[:16]

    def traceparent(self) -> str:
        """Value of TRACEPARENT for the ranks: this trace, below the job's span."""
        return f"00-{self.trace_id}-{self.span_id()}-{'01' if self.sampled else '00'}"


def trace_of(job_id: str, environment: Mapping[str, str] = os.environ) -> Trace:
    """The trace of a job, by SLURM_RESTART_COUNT and by TRACEPARENT, ignored when malformed."""
    restarts = environment.get("SLURM_RESTART_COUNT", "")
    requeue = int(restarts) if _REQUEUE.fullmatch(restarts) else 0
    parent = _TRACEPARENT.fullmatch(environment.get("TRACEPARENT", ""))
    if parent and TRACE_ID.fullmatch(parent[1]) and SPAN_ID.fullmatch(parent[2]):
        sampled = bool(int(parent[3], 16) & 1)
        return Trace(trace_id=parent[1], parent_id=parent[2], requeue=requeue, sampled=sampled)
    digest = hashlib.sha256(f"lockstep trace {job_id}".encode()).hexdigest()
    return Trace(trace_id=digest[:32], requeue=requeue)


NAMES = ("initialisation", "checkpoint", "restore", "evaluation", "slow_step")
MAX_BYTES = 256 << 10
_MAX_LINE_BYTES = 4096
_LARGEST_NS = 1 << 62


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """An activity of a rank that is rarer than a step.

    Attributes:
        name: one of ``NAMES``.
        number: count of the rank's spans in this attempt, from 0.
        trace_id: 32 hexadecimal digits.
        span_id: 16 hexadecimal digits, as ``parent_id``, which is the span of the rank.
        start_ns: wall clock in nanoseconds, as ``end_ns``.
        failed: the block ended by an exception.
        attributes: further values, such as step and seconds.
    """

    name: str
    number: int
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    failed: bool = False
    attributes: Mapping[str, Any] = field(default_factory=dict)


def spool_path(page: Path) -> Path:
    """The file of newer spans beside a rank's page."""
    return page.with_suffix(".spans.jsonl")


def _older(path: Path) -> Path:
    return path.with_suffix(".old.jsonl")


class SpanSpool:
    """The writing side; it never raises, for a span is not worth a training step.

    ``max_bytes`` are of the file, on a tmpfs, and the older one; ``lost`` spans were not written.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path, self._half = path, max_bytes // 2
        self._descriptor: int | None = None
        self._size = 0
        self.lost = 0

    def write(self, span: Span) -> None:
        """Appends a span with one write, so that a reader never meets half of it for long."""
        line = json.dumps(asdict(span), separators=(",", ":")).encode() + b"\n"
        try:
            # Each of the two files has half of the bound.
            if self._size + len(line) > self._half:
                self.close()
                self._path.replace(_older(self._path))
            if self._descriptor is None:
                self._open()
            assert self._descriptor is not None
            written = os.write(self._descriptor, line)
            self._size += written
            if written < len(line):  # the tmpfs is full: a torn line ends its file
                self._size = self._half
                self.lost += 1
        except OSError:
            self.lost += 1

    def _open(self) -> None:
        self._descriptor = open_own_file(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._size = os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Closes the file; a later write opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._size = None, 0


def read_spans(path: Path) -> list[Span]:
    """Spans of a rank by number; other lines are left out, an absent ``spool_path`` is empty."""
    spans: dict[int, Span] = {}
    for file in (_older(path), path):
        for line in _lines(file):
            span = _parse(line)
            if span is not None:
                spans[span.number] = span
    return [spans[number] for number in sorted(spans)]


def _lines(path: Path) -> list[bytes]:
    try:
        with open_foreign(path) as descriptor:
            data = os.pread(descriptor, MAX_BYTES, 0)
    except OSError:
        return []
    return [line for line in data.split(b"\n")[:-1] if len(line) <= _MAX_LINE_BYTES]


def _parse(line: bytes) -> Span | None:
    try:
        entry = json.loads(line)
        span = Span(
            name=entry["name"],
            number=int(entry["number"]),
            trace_id=str(entry["trace_id"]),
            span_id=str(entry["span_id"]),
            parent_id=str(entry["parent_id"]),
            start_ns=int(entry["start_ns"]),
            end_ns=int(entry["end_ns"]),
            failed=bool(entry["failed"]),
            attributes=_numbers(entry["attributes"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return span if _is_valid(span) else None


def _numbers(attributes: dict[str, Any]) -> dict[str, float]:
    return {str(k)[:64]: v for k, v in attributes.items() if isinstance(v, int | float)}


def _is_valid(span: Span) -> bool:
    ids = (span.span_id, span.parent_id)
    return (
        span.name in NAMES
        and span.number >= 0
        and TRACE_ID.fullmatch(span.trace_id) is not None
        and all(SPAN_ID.fullmatch(span_id) for span_id in ids)
        and 0 <= span.start_ns <= span.end_ns <= _LARGEST_NS
    )
