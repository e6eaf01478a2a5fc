"""Cost of evaluating a rule at the declared size, by the series and samples that it reads.

An estimate, made to refuse what cannot work before Prometheus misses its evaluations: the number of
series follows from their labels, and the time from the number of series and samples. The two
constants are of one core; docs/evidence/alerts.md holds their sum against a Prometheus.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from lockstep_alerts.areas import AREAS
from lockstep_alerts.output import rule_groups
from lockstep_alerts.reading.entry import SpecError
from lockstep_alerts.reading.limits import Size
from lockstep_alerts.reading.model import Delivery
from lockstep_alerts.spec import Spec
from lockstep_catalogue.labels import CLUSTER, GPU, JOB_ID, LINK, LOCAL_RANK, NODE, RANK, UUID
from lockstep_catalogue.metric import Kind, Label, Metric
from lockstep_catalogue.series_budget import SPARSE
from lockstep_prometheus.promql import Selector, selectors
from lockstep_records.text.durations import parse_duration

SERIES_SECONDS, SAMPLE_SECONDS = 4e-6, 1e-7
"""To find a series and carry its labels through an expression, and to decode and add a sample."""
_SPARSE_RATIO = 0.05
"""Share of the series of counters of rare faults that are served: those above zero."""
_CLASSES, _DEVICES, _LINKS = 5, 8, 18
"""Classes and queues of jobs; adapters of a node; NVLinks of a GPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleCost:
    """One rule.

    Attributes:
        seconds: estimated time of an evaluation.
        every_seconds: time between two.
    """

    group: str
    rule: str
    num_series: float
    num_samples: float
    every_seconds: float

    @property
    def seconds(self) -> float:
        """Estimated time of an evaluation, on one core."""
        return self.num_series * SERIES_SECONDS + self.num_samples * SAMPLE_SECONDS


def costs(spec: Spec) -> Iterator[RuleCost]:
    """Every rule of the spec with its estimated cost."""
    for area in AREAS:
        if not spec.alerts_of(area):
            continue
        for group in rule_groups(area, spec, Delivery()):
            every = parse_duration(str(group["interval"]))
            rules = group["rules"]
            assert isinstance(rules, list)
            for rule in rules:
                reads = [each for each in selectors(rule["expr"]) if each.series]
                numbers = [_num_series(each, spec.size) for each in reads]
                samples = [
                    number * max(1.0, each.range_seconds / _step(each, spec))
                    for each, number in zip(reads, numbers, strict=True)
                ]
                yield RuleCost(
                    group=str(group["name"]),
                    rule=rule.get("alert") or rule["record"],
                    num_series=math.fsum(numbers),
                    num_samples=math.fsum(samples),
                    every_seconds=every,
                )


def refuse_too_costly(spec: Spec) -> None:
    """Refuses a spec of which a rule takes longer than its interval.

    Raises:
        SpecError: with the rule, what it reads, and the size that works.
    """
    for cost in costs(spec):
        if cost.seconds > cost.every_seconds:
            ratio = cost.every_seconds / cost.seconds
            ranks, nodes = int(spec.size.ranks * ratio), int(spec.size.nodes * ratio)
            raise SpecError(
                f"{spec.size.location}: size: rule {cost.rule} of group {cost.group} would read "
                f"{cost.num_samples:,.0f} samples of {cost.num_series:,.0f} series, an estimated "
                f"{cost.seconds:.1f}s, every {cost.every_seconds:g}s; one Prometheus evaluates it "
                f"for about {ranks:,} ranks on {nodes:,} nodes: divide the clusters among several, "
                "or lengthen scrape_interval"
            )


def _step(selector: Selector, spec: Spec) -> float:
    is_scraped = isinstance(selector.series, Metric)
    return spec.windows.scrape_seconds if is_scraped else max(60, spec.windows.evaluation_seconds)


def _num_series(selector: Selector, size: Size) -> float:
    """Series that a selector finds: where they are, times the values of their other labels."""
    series = selector.series
    assert series is not None
    labels = series.exposed_labels
    number = float(_places(set(labels), size))
    by_name = {label.name: label for label in labels}
    for label in by_name.values():
        number *= _num_values(label, selector)
    if series in SPARSE:
        number *= _SPARSE_RATIO
    if isinstance(series, Metric) and series.kind is Kind.HISTOGRAM and "_bucket" in selector.name:
        number *= len(series.buckets) + 1
    return number


def _places(labels: set[Label], size: Size) -> int:
    """Ranks, GPUs, nodes or jobs: each rank is on one node and of one job."""
    if labels & {RANK, GPU, UUID, LOCAL_RANK}:
        return size.ranks
    if NODE in labels:
        return size.nodes
    return size.jobs if JOB_ID in labels else 1


def _num_values(label: Label, selector: Selector) -> float:
    matched = {name: (operator, value) for name, operator, value in selector.matchers}
    operator, value = matched.get(label.name, ("", ""))
    if operator == "=":
        return 1
    if operator == "=~":
        return value.count("|") + 1
    if label.values:
        return len(label.values)
    if label in {CLUSTER, NODE, JOB_ID, RANK, GPU, UUID, LOCAL_RANK}:
        return 1
    if label == LINK:
        return _LINKS
    per_node = {"device": _DEVICES, "job_class": _CLASSES, "queue": _CLASSES}
    return per_node.get(label.name, 1)
