"""The writer of expositions, held against prometheus_client's own."""

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from lockstep_agent.collector import AnyReading, HistogramReading, Reading
from lockstep_agent.exposition import Exposition, Renderer, render
from lockstep_catalogue import Kind, Metric, fabric, health, training

FORMATS = ("text/plain; version=0.0.4", "application/openmetrics-text; version=1.0.0")
PRINTABLE = st.text(max_size=8).filter(str.isprintable)
METRICS = (fabric.NET_UP, fabric.NET_CARRIER_CHANGES)


class Source:
    """Hands finished families to the library."""

    def __init__(self, families: list[Family]) -> None:
        self.families = families

    def describe(self) -> list[Family]:
        return []

    def collect(self) -> list[Family]:
        return self.families


def family_of(reading: Reading) -> Family:
    metric = reading.metric
    make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = make(metric.name, metric.help, labels=metric.label_names, unit=metric.unit.value)
    family.add_metric(reading.labels, reading.value)
    return family


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(METRICS), PRINTABLE, st.floats())
def test_both_formats_are_what_the_library_writes(metric: Metric, label: str, value: float) -> None:
    exposition = render([Reading(metric, (label,), value)], 0)
    registry = CollectorRegistry()
    readings = (
        Reading(metric, (label,), value),
        Reading(health.AGENT_SERIES, (), 3),
        Reading(health.AGENT_TICK, (), 0),
    )
    registry.register(Source([family_of(reading) for reading in readings]))
    for accept in FORMATS:
        write, content_type = choose_encoder(accept)
        body, told_type = exposition.choose(accept)
        assert body.decode() == write(registry).decode()
        assert told_type == content_type


def test_a_series_that_two_collectors_tell_is_served_once() -> None:
    first, second = (Reading(fabric.NET_UP, ("eth0",), value) for value in (1, 0))
    text = render([first, second], 0).text.decode()
    assert text.count('device="eth0"') == 1
    assert '{device="eth0"} 1.0' in text


def lines_of(exposition: Exposition) -> tuple[list[bytes], list[bytes]]:
    return sorted(exposition.text.splitlines()), sorted(exposition.openmetrics.splitlines())


HISTOGRAM = training.STEP_SECONDS
PLAIN = st.builds(
    Reading,
    st.sampled_from(METRICS),
    st.tuples(st.sampled_from(("eth0", "eth1", "eth2"))),
    st.sampled_from((0, 1, 2.5, float("nan"), float("inf"))),
)
COUNTS = st.sampled_from((0, 3)).map(lambda count: (count,) * (len(HISTOGRAM.buckets) + 1))
OF_STEPS = st.builds(
    HistogramReading, st.just(HISTOGRAM), st.just(("c", "j", "n")), COUNTS, st.floats(0, 9)
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(PLAIN | OF_STEPS, max_size=6), max_size=5))
def test_what_is_kept_from_tick_to_tick_is_what_is_written_anew(
    ticks: list[list[AnyReading]],
) -> None:
    renderer = Renderer()
    for number, readings in enumerate(ticks):
        kept, anew = renderer.render(readings, number), render(readings, number)
        assert lines_of(kept) == lines_of(anew)
        assert kept.openmetrics.endswith(b"# EOF\n")
