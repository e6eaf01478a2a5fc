"""The renderer of expositions, compared with prometheus_client's own."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from lockstep_agent.collector import AnyReading, HistogramReading, Reading
from lockstep_agent.exposition.text import Exposition, Renderer, render
from lockstep_catalogue import Kind, Metric, agent, fabric, training

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
    family_class = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = family_class(
        metric.name, metric.help, labels=metric.label_names, unit=metric.unit.value
    )
    family.add_metric(reading.labels, reading.value)
    return family


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(METRICS), PRINTABLE, st.floats())
def test_both_formats_are_what_the_library_writes(metric: Metric, label: str, value: float) -> None:
    exposition = render([Reading(metric, (label,), value)], 0)
    registry = CollectorRegistry()
    readings = (
        Reading(metric, (label,), value),
        Reading(agent.AGENT_SERIES, (), 3),
        Reading(agent.AGENT_TICK, (), 0),
    )
    registry.register(Source([family_of(reading) for reading in readings]))
    for accept in FORMATS:
        write, content_type = choose_encoder(accept)
        body, body_type = exposition.choose(accept)
        assert body.decode() == write(registry).decode()
        assert body_type == content_type


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


PARTS = st.lists(st.lists(PLAIN | OF_STEPS, max_size=4).map(tuple), max_size=3)


@settings(max_examples=50, deadline=None)
@given(st.lists(PARTS, max_size=5))
def test_an_incremental_exposition_equals_a_fresh_one(
    ticks: list[list[tuple[AnyReading, ...]]],
) -> None:
    renderer = Renderer()
    for number, parts in enumerate(ticks):
        incremental = renderer.render(parts, number)
        fresh = render([reading for part in parts for reading in part], number)
        assert lines_of(incremental) == lines_of(fresh)
        assert incremental.openmetrics.endswith(b"# EOF\n")


def net_up(device: str, value: float) -> tuple[AnyReading, ...]:
    return (Reading(fabric.NET_UP, (device,), value),)


def values_of(exposition: Exposition) -> dict[str, str]:
    """Value by device, as the text shows it."""
    pairs = re.findall(r'device="(\w+)"} (\S+)', exposition.text.decode())
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def test_a_duplicate_series_follows_the_first_part_and_after_its_end_the_second() -> None:
    renderer, second = Renderer(), net_up("eth0", 7)
    assert values_of(renderer.render([net_up("eth0", 1), second], 0)) == {"eth0": "1.0"}
    assert values_of(renderer.render([net_up("eth0", 2), second], 1)) == {"eth0": "2.0"}
    assert values_of(renderer.render([(), second], 2)) == {"eth0": "7.0"}
    assert values_of(renderer.render([net_up("eth0", 3), second], 3)) == {"eth0": "3.0"}


def test_every_series_has_the_labels_of_the_agent_whatever_a_job_calls_its_cluster() -> None:
    renderer = Renderer({"cluster": "east", "node": "n7"})
    steps = Reading(training.STEPS, ("west", "job", "3"), 5)
    exposition = renderer.render((net_up("eth0", 1), (steps,)), 0)
    lines = [line for line in exposition.text.decode().splitlines() if not line.startswith("#")]
    assert all('cluster="east"' in line and 'node="n7"' in line for line in lines), lines
    assert f'{training.STEPS.name}{{cluster="east",job_id="job",node="n7",rank="3"}} 5.0' in lines
    assert "west" not in exposition.openmetrics.decode()
