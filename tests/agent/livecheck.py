"""Compares a scrape with the catalogue, and with an earlier scrape."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from lockstep_catalogue import Endpoint, Kind, Metric, metrics_of


def complaints(scrape: str, declared: Iterable[Metric] = metrics_of(Endpoint.AGENT)) -> list[str]:
    """What is wrong with a scrape in the OpenMetrics format; empty when it is as declared."""
    parse: Any = text_string_to_metric_families
    families: dict[str, Family] = {family.name: family for family in parse(scrape)}
    problems: list[str] = []
    for metric in declared:
        family = families.pop(metric.name.removesuffix("_total"), None)
        if family is None or not family.samples:
            problems.append(f"{metric.name} is declared and not emitted")
        else:
            problems.extend(_of_family(metric, family))
    problems.extend(f"{name} is emitted and not declared" for name in families)
    return problems


def describe_changes(before: str, after: str) -> str:
    """Which series came, went or have another value, a line for each name."""
    old, new = _read_values(before), _read_values(after)
    changes = {
        "added": new.keys() - old.keys(),
        "removed": old.keys() - new.keys(),
        "other value": {series for series in old.keys() & new.keys() if old[series] != new[series]},
    }
    lines = [
        f"{change} {name}: {number} series"
        for change, found in changes.items()
        for name, number in sorted(Counter(each.partition("{")[0] for each in found).items())
    ]
    return "\n".join(lines) or "only comments differ"


def _read_values(scrape: str) -> dict[str, str]:
    samples = (line.rpartition(" ") for line in scrape.splitlines() if not line.startswith("#"))
    return {series: value for series, _, value in samples}


def _of_family(metric: Metric, family: Family) -> Iterator[str]:
    expected = (metric.kind.value, metric.unit.value, metric.help)
    for field, declared, emitted in zip(
        ("kind", "unit", "help"),
        expected,
        (family.type, family.unit, family.documentation),
        strict=True,
    ):
        if emitted != declared:
            yield f"{metric.name}: {field} is {emitted!r}, declared {declared!r}"
    for sample in family.samples:
        yield from _of_sample(metric, sample)
    if metric.kind is Kind.HISTOGRAM:
        bounds = {s.labels["le"] for s in family.samples if "le" in s.labels} - {"+Inf"}
        if sorted(map(float, bounds)) != list(metric.buckets):
            yield f"{metric.name}: buckets are {sorted(bounds)}"


def _of_sample(metric: Metric, sample: Sample) -> Iterator[str]:
    if sample.name not in metric.sample_names:
        yield f"{metric.name}: a sample is called {sample.name}"
    names = set(sample.labels) - {"le"}
    exposed = {label.name for label in metric.exposed_labels}
    if names != exposed:
        yield f"{metric.name}: labels are {sorted(names)}, declared {sorted(exposed)}"
    for label in metric.exposed_labels:
        value = sample.labels.get(label.name)
        if label.values and value is not None and value not in label.values:
            yield f"{metric.name}: {label.name}={value!r} is none of {label.values}"
