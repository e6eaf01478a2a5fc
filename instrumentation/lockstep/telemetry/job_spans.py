"""All spans of a job on this node: job, attempts and ranks from its events, others from spools."""

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lockstep_records.events.event import PREEMPTED, Event, read_events
from lockstep_records.file_access.foreign_files import RANK_PREFIX
from lockstep_records.files.jobs import list_attempts, list_pages
from lockstep_records.files.spans import Span, Trace, read_spans, spool_path

_GOOD_ENDS = (0, PREEMPTED)


class ExportSpan(NamedTuple):
    """A span, without a parent where it is the root, and of whom it is."""

    span: Span
    resource: Mapping[str, str | int]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSpans:
    """Reads the spans of one job; each reading returns all that have ended until then."""

    job: Path
    trace: Trace
    cluster: str
    node: str = field(default_factory=lambda: os.environ.get("LOCKSTEP_NODE") or platform.node())

    def read(self) -> Iterator[ExportSpan]:
        """Spans of the ranks of this node, of its attempts and, where rank 0 is, of the job."""
        events = read_events(self.job)
        has_rank_0 = any(
            0 in event.fields.get("ranks", ())
            for event in events
            if event.kind == "attempt_started"
        )
        # Each node's launcher writes these events; the one of rank 0 exports job and attempts.
        for began, ended in _pairs(events):
            if began.kind != "attempt_started" or has_rank_0:
                yield self._job_span(began, ended)
        for attempt in list_attempts(self.job):
            for page in list_pages(attempt):
                rank = int(page.stem.removeprefix(RANK_PREFIX))
                for span in read_spans(spool_path(page)):
                    yield ExportSpan(span, self._resource(int(attempt.name), rank))

    def _job_span(self, began: Event, ended: Event) -> ExportSpan:
        """The span of the job, an attempt or a rank; the length of its path says which."""
        path: tuple[int, ...] = ()
        if ended.kind != "job_finished":
            path = (ended.attempt,)
        if ended.kind == "rank_ended":
            path = (ended.attempt, int(ended.fields["rank"]))
        parent = self.trace.span_id(*path[:-1]) if path else self.trace.parent_id
        names = ("outcome", "exit_code", "signal", "first")
        span = Span(
            name=("job", "attempt", "rank")[len(path)],
            number=0,
            trace_id=self.trace.trace_id,
            span_id=self.trace.span_id(*path),
            parent_id=parent or "",
            start_ns=int(began.time * 1e9),
            # The wall clock may have been set back meanwhile.
            end_ns=int(max(began.time, ended.time) * 1e9),
            failed=ended.fields.get("exit_code") not in _GOOD_ENDS,
            attributes={
                name: ended.fields[name] for name in names if ended.fields.get(name) is not None
            },
        )
        return ExportSpan(span, self._resource(*path))

    def _resource(self, *path: int) -> Mapping[str, str | int]:
        return {
            "lockstep.job_id": self.job.name,
            "lockstep.cluster": self.cluster,
            "host.name": self.node,
            **dict(zip(("lockstep.attempt", "lockstep.rank"), path, strict=False)),
        }


def _pairs(events: list[Event]) -> Iterator[tuple[Event, Event]]:
    """Beginning and end of job, attempts and ranks, for those that have both."""
    job: Event | None = None
    attempts: dict[int, Event] = {}
    for event in events:
        if event.kind == "job_started":
            job = event
        elif event.kind == "attempt_started":
            attempts[event.attempt] = event
        elif event.kind == "job_finished" and job is not None:
            yield job, event
        elif event.kind in {"rank_ended", "attempt_ended"} and event.attempt in attempts:
            yield attempts[event.attempt], event
