"""From the pages of one job on this node to its readings: a dozen a rank, the rest as sums."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep_agent.collector import AnyReading, Exemplar, HistogramReading, Reading, present
from lockstep_agent.jobs.checkpoint_readings import checkpoint_readings
from lockstep_agent.jobs.outliers import fingerprint_readings, out_of_memory_readings
from lockstep_agent.jobs.state_readings import state_now, state_totals
from lockstep_agent.sources.pods import Pod
from lockstep_catalogue import training as metrics
from lockstep_catalogue.labels import KIND, MESH, STATE, STEP_PHASES
from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_records.page.data_ranks import counts_data
from lockstep_records.page.layout import STEP_BUCKETS
from lockstep_records.page.reader import Page

_BUCKETS = (*(str(bound) for bound in STEP_BUCKETS), "more")
_DATA_SUMS = {metrics.TOKENS: "tokens", metrics.SAMPLES: "samples"}
_LAST_VALUES = {
    metrics.LOSS: "loss",
    metrics.GRADIENT_NORM: "gradient_norm",
    metrics.LEARNING_RATE: "learning_rate",
}
_COLLECTIVES = {
    metrics.COLLECTIVES: "collectives",
    metrics.COLLECTIVE_BYTES: "collective_bytes",
    metrics.COLLECTIVE_SECONDS: "collective_seconds",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class JobView:
    """A job on this node at one moment.

    Attributes:
        job_id: name of the job's folder, so that no page can speak for another job.
        pages: of all attempts; at least one.
        running: paths of the pages whose process still runs.
        exemplars: slow steps, one a bucket of the step histogram or None; or none at all.
        pods: by the job's folders in their volumes.
    """

    cluster: str
    job_id: str
    node: str
    pages: list[Page]
    running: frozenset[Path]
    pods: Mapping[Path, Pod]
    exemplars: tuple[Exemplar | None, ...] = ()


def job_readings(view: JobView) -> Iterator[AnyReading]:
    """All readings of a job.

    Counters are sums over every attempt. Gauges cover the newest attempt only: a rank that it does
    not have was left out on purpose and has not died.
    """
    newest = max(view.pages, key=_age).identity
    of_attempt = (p for p in view.pages if _attempt(p) == newest["attempt"])
    current = {page.identity["rank"]: page for page in sorted(of_attempt, key=_age)}
    job_labels = (view.cluster, view.job_id)
    by_rank = defaultdict[int, list[Page]](list)
    for page in view.pages:
        by_rank[page.identity["rank"]].append(page)
    for rank in sorted(by_rank):
        labels = (*job_labels, str(rank))
        yield from _rank_totals(labels, by_rank[rank])
        if rank in current:
            yield from _rank_now(labels, view, current[rank])
    node_labels = (*job_labels, view.node)
    words = tuple(newest[name] for name in ("project", "queue", "job_class"))
    yield Reading(metrics.JOB_INFO, (*node_labels, *words), 1)
    yield from _node_totals(node_labels, view.pages, view.exemplars)
    yield from _node_now(node_labels, view, current)
    yield from state_totals(node_labels, view.pages)
    yield from checkpoint_readings(node_labels, view.pages)
    yield from out_of_memory_readings(node_labels, view.pages)
    yield from fingerprint_readings(node_labels, list(current.values()))
    yield from _device_totals(node_labels, view.pages)
    running = [page for page in current.values() if page.path in view.running]
    yield from state_now(node_labels, list(current.values()), running)


def _attempt(page: Page) -> int:
    return int(page.identity["attempt"])


def _age(page: Page) -> tuple[int, int]:
    return _attempt(page), page.identity["start_wall_ns"]


def _sum(pages: list[Page], field: str) -> float:
    return float(sum(page.state[field] for page in pages))


def _sum_item(pages: list[Page], field: str, item: str) -> float:
    return float(sum(page.state[field][item] for page in pages))


def _rank_totals(labels: tuple[str, ...], pages: list[Page]) -> Iterator[Reading]:
    yield Reading(metrics.STEPS, labels, _sum(pages, "steps"))
    for phase in STEP_PHASES:
        seconds = _sum_item(pages, "phase_seconds", phase)
        yield Reading(metrics.PHASE_SECONDS, (*labels, phase), seconds)
    rounds, independent = (
        sum(page.periodic[field] or 0 for page in pages)
        for field in ("sync_rounds", "independent_rounds")
    )
    counts = (rounds - independent, independent)
    for exchange, count in zip(metrics.EXCHANGE.values, counts, strict=True):
        if count:
            yield Reading(metrics.SYNC_ROUNDS, (*labels, exchange), count)


def _rank_now(labels: tuple[str, ...], view: JobView, page: Page) -> Iterator[Reading]:
    fields, pod = page.identity, view.pods.get(page.path.parents[1], Pod())
    identity = (
        fields["project"],
        view.node,
        *(str(fields[name]) for name in ("local_rank", "world_size", "attempt")),
        fields["gpu_uuid"],
        pod.namespace,
        pod.name,
        pod.container,
        page.clock,
        *(str(fields["mesh"].get(axis.name, "")) for axis in MESH),
    )
    is_waiting = page.phase == "sync" and page.path in view.running
    yield Reading(metrics.RANK_INFO, (*labels, *identity), 1)
    yield Reading(metrics.LAST_PROGRESS, labels, page.progress_wall_seconds)
    yield Reading(metrics.RANK_WAITING, labels, 1 if is_waiting else 0)
    yield from present(metrics.STALENESS, labels, page.periodic["staleness_steps"])
    if (synced_ns := page.periodic["synced_ns"]) is not None:
        yield Reading(metrics.LAST_SYNC, labels, page.wall_seconds(synced_ns))


def _node_totals(
    labels: tuple[str, ...], pages: list[Page], exemplars: tuple[Exemplar | None, ...]
) -> Iterator[AnyReading]:
    counts = tuple(int(_sum_item(pages, "step_buckets", bucket)) for bucket in _BUCKETS)
    seconds = _sum(pages, "step_seconds_sum")
    yield HistogramReading(metrics.STEP_SECONDS, labels, counts, seconds, exemplars)
    yield Reading(metrics.NONFINITE_STEPS, labels, _sum(pages, "nonfinite_steps"))
    data_pages = [page for page in pages if counts_data(page.identity["mesh"])]
    for metric, field in _DATA_SUMS.items():
        yield Reading(metric, labels, _sum(data_pages, field))
    for kind in KIND.values:
        if _sum_item(pages, "collectives", kind):
            for metric, field in _COLLECTIVES.items():
                yield Reading(metric, (*labels, kind), _sum_item(pages, field, kind))
    durable = (page.state["checkpoint_wall_ns"] for page in pages)
    yield from present(metrics.LAST_CHECKPOINT, labels, _highest(durable), 1e-9)


def _node_now(
    labels: tuple[str, ...], view: JobView, current: dict[int, Page]
) -> Iterator[Reading]:
    lowest = current[min(current)]
    states = [_state(page, page.path in view.running) for page in current.values()]
    for state in STATE.values:
        yield Reading(metrics.RANKS, (*labels, state), states.count(state))
    yield Reading(metrics.ATTEMPT_NUMBER, labels, lowest.identity["attempt"])
    yield Reading(metrics.WORLD_RANKS, labels, lowest.identity["world_size"])
    steps = (page.state["step"] for page in current.values())
    yield from present(metrics.STEP, labels, _highest(steps))
    for metric, field in _LAST_VALUES.items():
        value = lowest.state[field]
        # That it is not finite is counted; a gauge of it would stop every average.
        if value is not None and math.isfinite(value):
            yield Reading(metric, labels, value)


def _state(page: Page, running: bool) -> str:
    """A value of the label ``state``; phases inside a step are all training."""
    if not running and page.phase not in ENDED_PHASES:
        return "gone"
    return page.phase if page.phase in STATE.values else "training"


def _device_totals(labels: tuple[str, ...], pages: list[Page]) -> Iterator[Reading]:
    """Counters of the GPUs' streams and of the bus: sums over every attempt; absent without any."""
    for kind in KIND.values:
        if size := sum(page.periodic["bus_bytes"][kind] for page in pages):
            yield Reading(metrics.BUS_BYTES, (*labels, kind), size)
    if steps := sum(page.periodic["device_steps"] for page in pages):
        yield Reading(metrics.DEVICE_STEPS, labels, steps)
        for phase in STEP_PHASES:
            seconds = sum(page.periodic["host_bound_seconds"][phase] for page in pages)
            yield Reading(metrics.HOST_BOUND_SECONDS, (*labels, phase), seconds)
        launch_bound = sum(page.periodic["launch_bound_steps"] for page in pages)
        yield Reading(metrics.LAUNCH_BOUND_STEPS, labels, launch_bound)


def _highest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
