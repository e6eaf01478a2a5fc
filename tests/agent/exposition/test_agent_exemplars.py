"""Exemplars: a scrape in OpenMetrics leads from a slow bucket to the trace of the slow step."""

import time
import urllib.request
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from servers import serving

from lockstep_agent.options import Options
from lockstep_agent.runtime.collector_runtime import CollectorRuntime
from lockstep_agent.runtime.sampler import Sampler
from lockstep_agent.web.server import MetricsServer
from lockstep_catalogue.training import STEP_SECONDS
from lockstep_records.files.spans import Span, SpanSpool, spool_path, trace_of

from ..live_page import LivePage

TRACE = trace_of("job", {})


def slow_step(page: LivePage, rank: int, number: int, **attributes: float) -> Span:
    """Spools a slow step that ends now."""
    now = time.time_ns()
    span = Span(
        name="slow_step",
        number=number,
        trace_id=TRACE.trace_id,
        span_id=TRACE.span_id(0, rank, number),
        parent_id=TRACE.span_id(0, rank),
        start_ns=now - 1000,
        end_ns=now,
        attributes=attributes,
    )
    SpanSpool(spool_path(page.path)).write(span)
    return span


def buckets(text: str) -> list[Sample]:
    parsed = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]  # ships no types
    (family,) = [f for f in parsed if f.name == STEP_SECONDS.name]
    return [sample for sample in family.samples if sample.exemplar]


def test_a_scrape_in_openmetrics_has_the_newest_slow_step_of_each_bucket(
    root: Path, options: Options
) -> None:
    pages = [LivePage(root, rank=rank) for rank in (0, 1)]
    for page in pages:
        page.step(1)
    slow_step(pages[0], 0, 0, seconds=0.9)
    slow_step(pages[0], 0, 1, seconds=3.0)
    newest = slow_step(pages[1], 1, 0, seconds=0.92)
    sampler = Sampler(CollectorRuntime(options), options.tick)
    sampler.sample()
    with serving(MetricsServer("127.0.0.1", 0, sampler)) as server:
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        request = urllib.request.Request(server.url, headers=accept)  # noqa: S310  # loopback
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310  # loopback
            text = answer.read().decode()
    exemplars = {s.exemplar.value: s.exemplar for s in buckets(text) if s.exemplar}
    assert set(exemplars) == {0.92, 3.0}
    assert exemplars[0.92].labels == {
        "trace_id": TRACE.trace_id,
        "span_id": newest.span_id,
        "rank": "1",
    }
    assert exemplars[0.92].timestamp is not None


def test_an_exemplar_is_in_the_bucket_that_counts_it(root: Path, options: Options) -> None:
    page = LivePage(root)
    page.step(1)
    bounds = (STEP_SECONDS.buckets[0], STEP_SECONDS.buckets[-1] * 2)
    for number, seconds in enumerate(bounds):
        slow_step(page, 0, number, seconds=seconds)
    exposition = Sampler(CollectorRuntime(options), 1.0).sample()
    assert TRACE.trace_id not in exposition.text.decode()
    text = exposition.openmetrics.decode()
    assert [s.labels["le"] for s in buckets(text)] == [str(bounds[0]), "+Inf"]


def test_a_later_slow_step_replaces_the_exemplar_and_hostile_ones_are_left_out(
    root: Path, options: Options
) -> None:
    page = LivePage(root)
    page.step(1)
    sampler = Sampler(CollectorRuntime(options), 1.0)
    slow_step(page, 0, 0, seconds=0.9)
    assert [s.exemplar.value for s in buckets(sampler.sample().openmetrics.decode())] == [0.9]  # type: ignore[union-attr]  # chosen for having one
    hostile: tuple[dict[str, float], ...] = ({}, {"seconds": float("nan")}, {"seconds": -1.0})
    for number, attributes in enumerate(hostile, start=1):
        slow_step(page, 0, number, **attributes)
    slow_step(page, 0, 4, seconds=0.91)
    assert [s.exemplar.value for s in buckets(sampler.sample().openmetrics.decode())] == [0.91]  # type: ignore[union-attr]  # chosen for having one
