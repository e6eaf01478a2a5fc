"""Series of the ledger: outcomes, GPU time, cost and the exact counts of each objective."""

import zlib
from collections.abc import Iterator
from itertools import product

import numpy as np

from lockstep_catalogue import Endpoint, Kind, Label, Metric, Unit, ledger, metrics_of
from lockstep_catalogue.labels import GOODPUT

from .cluster import CLUSTER_NAME, Cluster, Values
from .remote_write import Samples

_TARGET = {"job": "lockstep-ledger", "instance": "ledger:9470"}
_STATES = {"productive": 0.86, "communication": 0.04, "straggler_wait": 0.02, "data_wait": 0.02}
_REST = 0.06
"""Share of GPU time in all states that are not named above, together."""
_PRICE_PER_GPU_HOUR = 2.5
_DEADLINE_SECONDS, _JOB_TOKENS = 3600.0, 1e9
_GOOD_RATIO = {"job_success": 0.97, "goodput": 0.86, "requeue": 0.96, "time_to_complete": 0.93}
_OTHERS_GOOD_RATIO = 0.995
_OPEN = {
    "version": ("0",),
    "ingest": ("accepted",),
    "http_status": ("2xx", "4xx"),
    "currency": ("EUR", "USD"),
}
_BUSY_SHARES = {"succeeded": 0.9, "failed": 0.06}


def ledger_series(cluster: Cluster) -> Iterator[Samples]:
    """All series of the ledger."""
    yield Samples({"__name__": "up"} | _TARGET, np.ones_like(cluster.times))
    groups = [
        {
            "queue": job.queue,
            "project": job.project,
            "job_class": job.job_class,
            "job_id": job.job_id,
        }
        for job in cluster.jobs
    ]
    for metric in metrics_of(Endpoint.LEDGER):
        names = set(metric.label_names)
        # Objectives are counted by class alone, and two jobs may be of one class.
        of_metric = {tuple((k, v) for k, v in group.items() if k in names) for group in groups}
        for group in map(dict, sorted(of_metric)):
            fixed = group | ({"cluster": CLUSTER_NAME} if "cluster" in names else {})
            if metric == ledger.JOB_ENDED:
                yield ended_job(cluster, f"{group['job_id']}-before", float(cluster.times[0]) - 60)
                continue
            rest = [label for label in metric.labels if label.name not in fixed]
            for values in product(*(_options(label) for label in rest)):
                labels = fixed | dict(zip((x.name for x in rest), values, strict=True)) | _TARGET
                yield from _sample_metric(metric, labels, cluster)


def ended_job(cluster: Cluster, job_id: str, end: float, outcome: str = "succeeded") -> Samples:
    """When a job ended, from then on, and what became of it."""
    labels = {
        "__name__": ledger.JOB_ENDED.name, "cluster": CLUSTER_NAME, "job_id": job_id,
        "job_outcome": outcome, "failure_class": "none",
    }  # fmt: skip
    return Samples(labels | _TARGET, np.where(cluster.times >= end, end, np.nan))


def _options(label: Label) -> tuple[str, ...]:
    if label.name == "store":
        return ("postgresql",)
    return label.values or _OPEN.get(label.name, ("",))


def _sample_metric(metric: Metric, labels: dict[str, str], cluster: Cluster) -> Iterator[Samples]:
    if metric.kind is Kind.HISTOGRAM:
        yield from _histogram(metric, labels, cluster)
        return
    yield Samples({"__name__": metric.name} | labels, _values(metric, labels, cluster))


def _histogram(metric: Metric, labels: dict[str, str], cluster: Cluster) -> Iterator[Samples]:
    """A fifth more events below each bound than below the one before it."""
    events = np.floor((cluster.times - cluster.times[0]) / 60)
    bounds = (*metric.buckets, np.inf)
    for number, bound in enumerate(bounds, start=1):
        le = {"le": "+Inf" if bound == np.inf else f"{bound:g}"}
        name = {"__name__": f"{metric.name}_bucket"}
        yield Samples(name | labels | le, np.floor(events * number / len(bounds)))
    mean = metric.buckets[len(metric.buckets) // 2]
    yield Samples({"__name__": f"{metric.name}_sum"} | labels, events * mean)
    yield Samples({"__name__": f"{metric.name}_count"} | labels, events)


def _values(metric: Metric, labels: dict[str, str], cluster: Cluster) -> Values:
    if metric == ledger.SLO_EVENTS:
        return _slo_events(labels, cluster)
    if metric in {ledger.JOB_DEADLINE, ledger.JOB_TOKENS}:
        deadline = float(cluster.times[-1]) + _DEADLINE_SECONDS
        of_job = {ledger.JOB_DEADLINE: deadline, ledger.JOB_TOKENS: _JOB_TOKENS}
        return np.full_like(cluster.times, of_job[metric])
    if metric.unit is Unit.TIMESTAMP_SECONDS:
        return cluster.times.copy()
    seed = zlib.crc32(f"{metric.name}{sorted(labels.items())}".encode()) % 1000 / 1000
    if metric.kind is Kind.GAUGE:
        return np.full_like(cluster.times, np.floor(1 + 10 * seed))
    num_gpus = 8.0 * len(cluster.nodes) / len(cluster.jobs)
    counted: Values = _rate(metric, labels, num_gpus, seed) * (cluster.times - cluster.times[0])
    return counted if metric.unit is Unit.SECONDS or metric == ledger.COST else np.floor(counted)


def _rate(metric: Metric, labels: dict[str, str], num_gpus: float, seed: float) -> float:
    """Growth of a counter in a second."""
    if metric == ledger.GPU_SECONDS:
        return num_gpus * _share_of_state(labels[GOODPUT.name])
    if metric == ledger.COST:
        return num_gpus * _PRICE_PER_GPU_HOUR / 3600
    outcome = _BUSY_SHARES.get(labels.get("job_outcome", "succeeded"), 0.01) * (0.5 + seed)
    return outcome * num_gpus if metric.unit is Unit.SECONDS else outcome / 20


def _share_of_state(state: str) -> float:
    return _STATES.get(state, _REST / (len(GOODPUT.values) - len(_STATES)))


def _slo_events(labels: dict[str, str], cluster: Cluster) -> Values:
    """Counts of a window: a thousandth of its seconds, and fewer good ones from halfway on."""
    seconds = ledger.SLO_WINDOWS[labels["window"]]
    total = np.full_like(cluster.times, np.ceil(seconds / 100))
    if labels["slo_event"] == "total":
        return total
    good = _GOOD_RATIO.get(labels["slo"], _OTHERS_GOOD_RATIO)
    return np.floor(total * np.where(cluster.is_later, good - 0.005, good))
