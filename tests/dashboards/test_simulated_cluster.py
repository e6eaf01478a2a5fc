"""The simulated cluster is as the catalogue declares: every metric, its labels and its type."""

from collections import defaultdict
from itertools import chain

import numpy as np
import pytest
from simulated_cluster import Cluster, simulated
from simulated_cluster.job_series import job_series
from simulated_cluster.ledger_series import ledger_series
from simulated_cluster.node_series import node_series
from simulated_cluster.remote_write import Samples
from simulated_cluster.rules import shipped_rules

from lockstep_catalogue import METRICS, RECORDED, Kind
from lockstep_catalogue.recorded import COUNTER_BAD, COUNTER_TOTAL
from lockstep_catalogue.series_budget import MAX_SERIES
from lockstep_catalogue.training import PHASE_SECONDS

OF_PROMETHEUS = {"__name__", "job", "instance", "le"}


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return simulated(end=1.7e9, range_seconds=600)


@pytest.fixture(scope="module")
def series(cluster: Cluster) -> list[Samples]:
    return list(chain(job_series(cluster), node_series(cluster), ledger_series(cluster)))


@pytest.fixture(scope="module")
def by_name(series: list[Samples]) -> dict[str, list[Samples]]:
    grouped: dict[str, list[Samples]] = defaultdict(list)
    for each in series:
        grouped[each.labels["__name__"]].append(each)
    return grouped


def test_every_metric_has_series_with_its_labels_and_their_values(
    by_name: dict[str, list[Samples]],
) -> None:
    for metric in METRICS:
        for name in metric.sample_names:
            assert by_name[name], f"{name} has no series"
            for each in by_name[name]:
                labels = each.labels.keys() - OF_PROMETHEUS
                assert labels <= {label.name for label in metric.exposed_labels}, name
                for label in metric.exposed_labels:
                    value = each.labels.get(label.name, "")
                    assert not label.values or value in label.values, (name, label.name, value)


def test_counters_never_fall_and_everything_is_finite(by_name: dict[str, list[Samples]]) -> None:
    for metric in METRICS:
        for each in chain.from_iterable(by_name[name] for name in metric.sample_names):
            values = each.values[~np.isnan(each.values)]
            assert np.isfinite(values).all(), each.labels
            if metric.kind is not Kind.GAUGE:
                assert (np.diff(values) >= 0).all(), each.labels


def test_no_series_is_there_twice(series: list[Samples]) -> None:
    identities = [tuple(sorted(each.labels.items())) for each in series]
    assert len(identities) == len(set(identities))


def test_a_node_has_as_many_series_as_an_agent_may_serve(
    series: list[Samples], cluster: Cluster
) -> None:
    healthy = cluster.nodes[1]
    assert sum(each.labels.get("node") == healthy for each in series) < MAX_SERIES


def test_the_phases_of_a_step_sum_to_the_time(
    by_name: dict[str, list[Samples]], cluster: Cluster
) -> None:
    job_id = cluster.jobs[0].job_id
    parts = [
        each.values[-1]
        for each in by_name[PHASE_SECONDS.name]
        if (each.labels["job_id"], each.labels["rank"]) == (job_id, "0")
    ]
    assert sum(parts) == pytest.approx(cluster.times[-1] - cluster.times[0])


def test_the_shipped_rules_come_after_what_they_read() -> None:
    names = [rule.name for rule in shipped_rules() if not rule.is_alert]
    # The shipped spec has no objective on a counter of one's own.
    of_counters = {COUNTER_TOTAL.name, COUNTER_BAD.name}
    assert {series.name for series in RECORDED} - of_counters == set(names)
    for index, rule in enumerate(shipped_rules()):
        later = set(names[index + 1 :])
        assert not [name for name in later if name in rule.expression], rule.name
