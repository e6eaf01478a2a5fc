"""Exports the spans of a job over OTLP/HTTP, by the standard OTEL_ variables, from beside it.

``lockstep run`` starts this as a child when an OTLP endpoint is set; the training processes know
nothing of it. What the receiver does not take is offered again, for as long as the spool holds it.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lockstep.sidecar import Child, rounds
from lockstep.telemetry.job_spans import ExportSpan, JobSpans
from lockstep_records.distribution import install_hint, installed_version
from lockstep_records.files.spans import trace_of

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
    from opentelemetry.sdk.util.instrumentation import (  # noqa: PLC0415  # an extra
        InstrumentationScope,
    )
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
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415  # an extra
        OTLPSpanExporter,
    )

    spans = JobSpans(job=job, trace=trace_of(job.name), cluster=cluster)
    outbox = Outbox(OTLPSpanExporter())
    for _ in rounds(every_seconds):
        outbox.offer(spans.read())
    if outbox.waiting:
        click.echo(f"lockstep: {outbox.waiting} spans could not be exported", err=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
