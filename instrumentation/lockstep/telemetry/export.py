"""Exports the spans of a job over OTLP/HTTP, by the standard OTEL_ variables, from beside it.

``lockstep run`` starts this as a child when an OTLP endpoint is set; the training processes know
nothing of it. What the receiver does not take is offered again, for as long as the spool holds it.
"""

import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from lockstep.sidecar import Child, rounds
from lockstep_records.distribution import install_hint, installed_version
from lockstep_records.events.event import PREEMPTED, Event, read_events
from lockstep_records.file_access.foreign_files import RANK_PREFIX
from lockstep_records.files.jobs import list_attempts, list_pages
from lockstep_records.files.spans import Span, Trace, read_spans, spool_path, trace_of

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


if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_HTTP = "http/protobuf"
_BATCH = 512
_EVERY_SECONDS = 5.0
_TIMEOUT_SECONDS = 5.0


def exporter_of(
    job: Path, cluster: str, environment: Mapping[str, str] = os.environ
) -> tuple[Child, ...]:
    """The exporter to start beside a job; nothing where no endpoint is set or traces are off.

    An endpoint that cannot be served costs the traces and not the job: it is reported on stderr.
    """
    exporters = environment.get("OTEL_TRACES_EXPORTER", "otlp")
    off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or exporters != "otlp"
    if off or not any(environment.get(name) for name in _ENDPOINTS):
        return ()
    if not trace_of(job.name, environment).sampled:
        return ()
    protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), _HTTP)
    if protocol != _HTTP:
        click.echo(f"lockstep: no traces: OTLP protocol {protocol!r} is not {_HTTP}", err=True)
        return ()
    if find_spec("opentelemetry") is None:
        click.echo(
            "lockstep: no traces: an OTLP endpoint is set, but opentelemetry is not installed;"
            f" {install_hint('telemetry')}",
            err=True,
        )
        return ()
    arguments = ("-m", "lockstep.telemetry.export", str(job), cluster)
    return (Child(name="telemetry", arguments=arguments, timeout_seconds=_TIMEOUT_SECONDS),)


class Outbox:
    """Offers spans to an exporter until it takes them; each is taken once."""

    def __init__(self, exporter: "SpanExporter") -> None:
        self._exporter = exporter
        self._taken: set[str] = set()
        self.waiting = 0

    def offer(self, spans: Iterable[ExportSpan]) -> None:
        """Sends what has not been taken; stops at the first batch that is refused."""
        from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415  # an extra

        # Ids are computed and not drawn, so a span that is read again has the id of before.
        new = [each for each in spans if each.span.span_id not in self._taken]
        self.waiting = len(new)
        for first in range(0, len(new), _BATCH):
            batch = new[first : first + _BATCH]
            if self._exporter.export(convert(batch)) is not SpanExportResult.SUCCESS:
                return
            self._taken.update(each.span.span_id for each in batch)
            self.waiting -= len(batch)


def convert(spans: Iterable[ExportSpan]) -> "Sequence[ReadableSpan]":
    """The spans as objects of opentelemetry-sdk."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415  # an extra
    from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415  # an extra
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415  # an extra
    from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags  # noqa: PLC0415  # an extra

    def context(trace_id: str, span_id: str) -> SpanContext:
        sampled = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(int(trace_id, 16), int(span_id, 16), False, sampled)

    def create_resource(attributes: Mapping[str, str | int]) -> Resource:
        resource = Resource.create(dict(attributes))
        is_unnamed = str(resource.attributes[SERVICE_NAME]).startswith("unknown_service")
        return resource.merge(Resource({SERVICE_NAME: "lockstep"})) if is_unnamed else resource

    scope = InstrumentationScope("lockstep", installed_version())
    return [
        ReadableSpan(
            name=span.name,
            context=context(span.trace_id, span.span_id),
            parent=context(span.trace_id, span.parent_id) if span.parent_id else None,
            resource=create_resource(resource),
            attributes={f"lockstep.{name}": value for name, value in span.attributes.items()},
            status=Status(StatusCode.ERROR if span.failed else StatusCode.OK),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=scope,
        )
        for span, resource in spans
    ]


def main(job: Path, cluster: str, every_seconds: float = _EVERY_SECONDS) -> None:
    """Exports until the job is over."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415  # an extra

    spans = JobSpans(job=job, trace=trace_of(job.name), cluster=cluster)
    outbox = Outbox(OTLPSpanExporter())
    for _ in rounds(every_seconds):
        outbox.offer(spans.read())
    if outbox.waiting:
        click.echo(f"lockstep: {outbox.waiting} spans could not be exported", err=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
