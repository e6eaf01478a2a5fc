"""The writer of expositions, held against prometheus_client's own."""

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from lockstep_agent.collector import Reading
from lockstep_agent.exposition import render
from lockstep_catalogue import Kind, Metric, fabric, health

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
