"""From the pages of one job on this node to its readings: a dozen a rank, the rest as sums."""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep_agent.collector import AnyReading, Exemplar, HistogramReading, Reading, present
from lockstep_agent.sources.pods import Pod
from lockstep_catalogue import Metric, collect
from lockstep_catalogue import training as metrics
from lockstep_catalogue.labels import KIND, MESH, RESTORE_OUTCOME, STATE, STEP_PHASES, WRITING
from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_outcomes.progress.goodput import PAGE_STATES, goodput_ns
from lockstep_records.page.layout import CHECKPOINT_BUCKET_ITEMS, STEP_BUCKETS
from lockstep_records.page.reader import Page
from lockstep_records.page.replicas import (
    UNSEEN,
    Fingerprint,
    compare_replicas,
    counts_data,
    fingerprints_of,
    unseen_in,
)

Labels = tuple[str, ...]
_Combine = Callable[[list[int]], int]
_SUMS = tuple(metric for metric in collect(metrics, Metric) if metric.page_field)
_MEMORY = {
    "allocated": "device_allocated_bytes",
    "reserved": "device_reserved_bytes",
    "peak": "device_peak_bytes",
    "resident": "resident_bytes",
}
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
_MAX_NAMED_RANKS = 8
# A gauge holds integers up to 2^53; the multiplier keeps the two halves from cancelling out.
_FINGERPRINT_BITS = (1 << 52) - 1
_MULTIPLIER = 0x9E3779B97F4A7C15


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
    newest_page = max(view.pages, key=_age)
    newest = newest_page.identity
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
    seen_by = "plugin" if newest_page.is_of_plugin else "pages"
    launches = "unseen" if UNSEEN["launches"] in unseen_in(newest_page.periodic) else "unasked"
    yield Reading(metrics.JOB_SEEN, (*node_labels, seen_by, launches), 1)
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


def progress_seconds(page: Page) -> float:
    """Wall clock of the last heartbeat, by the clock as it is set now.

    One that was set since the page was made would make the rank seem to stand, or to be ahead.
    """
    by_page = page.progress_wall_seconds
    now = (time.time_ns() - time.monotonic_ns() + page.progress_ns) / 1e9
    # Below a second the two are read at different moments: the value stays that of the page.
    return now if abs(now - by_page) > 1 else by_page


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
    yield Reading(metrics.LAST_PROGRESS, labels, progress_seconds(page))
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


def checkpoint_readings(labels: Labels, pages: list[Page]) -> Iterator[AnyReading]:
    """Counters over every attempt, and the histograms of the seconds that checkpoints took."""
    writers = _group_by_attempt([page for page in pages if _num_saves(page)])
    counts = {
        "ok": _total(writers, min, lambda page: page.state["checkpoints"]["ok"]),
        "failed": _total(writers, max, lambda page: page.state["checkpoints"]["failed"]),
        "invalid": _total(writers, max, lambda page: page.periodic["checkpoints_invalid"]),
    }
    for outcome, count in counts.items():
        yield Reading(metrics.CHECKPOINTS, (*labels, outcome), count)
    verified = _total(writers, min, lambda page: page.periodic["checkpoints_verified"])
    yield Reading(metrics.CHECKPOINTS_VERIFIED, labels, verified)
    if writers:
        yield from _histograms(labels, list(writers.values()))
    yield from _restores(labels, _group_by_attempt([page for page in pages if _num_restores(page)]))


def _num_saves(page: Page) -> int:
    outcomes: dict[str, int] = page.state["checkpoints"]
    return sum(outcomes.values()) + int(page.periodic["checkpoints_invalid"])


def _num_restores(page: Page) -> int:
    outcomes: dict[str, int] = page.periodic["restores"]
    return sum(outcomes.values())


def _group_by_attempt(pages: list[Page]) -> dict[int, list[Page]]:
    by_attempt = defaultdict[int, list[Page]](list)
    for page in pages:
        by_attempt[page.identity["attempt"]].append(page)
    return by_attempt


def _total(
    attempts: dict[int, list[Page]], combine: _Combine, count_of: Callable[[Page], int]
) -> int:
    return sum(combine([count_of(page) for page in pages]) for pages in attempts.values())


def _restores_that(outcome: str) -> Callable[[Page], int]:
    return lambda page: int(page.periodic["restores"][outcome])


def _histograms(labels: Labels, attempts: list[list[Page]]) -> Iterator[HistogramReading]:
    """Of the lowest rank that writes: the others of the node wait for the same saves."""
    lowest = [min(pages, key=lambda page: int(page.identity["rank"])) for pages in attempts]
    for writing in WRITING.values:
        buckets = [page.periodic[f"checkpoint_{writing}_buckets"] for page in lowest]
        yield HistogramReading(
            metrics.CHECKPOINT_SECONDS,
            (*labels, writing),
            tuple(sum(by_item[item] for by_item in buckets) for item in CHECKPOINT_BUCKET_ITEMS),
            sum(page.periodic[f"checkpoint_{writing}_seconds"] for page in lowest),
        )


def _restores(labels: Labels, attempts: dict[int, list[Page]]) -> Iterator[Reading]:
    for outcome in RESTORE_OUTCOME.values:
        combine: _Combine = min if outcome == "ok" else max
        count = _total(attempts, combine, _restores_that(outcome))
        yield Reading(metrics.RESTORES, (*labels, outcome), count)
    passed_over = _total(attempts, max, lambda page: page.periodic["passed_over"])
    yield Reading(metrics.PASSED_OVER, labels, passed_over)
    yield Reading(metrics.LOST_STEPS, labels, _total(attempts, max, _lost_steps))


def _lost_steps(page: Page) -> int:
    before, restored = page.periodic["step_before"], page.periodic["restored_step"]
    return 0 if before is None or restored is None else max(0, before - restored)


def state_totals(labels: Labels, pages: list[Page]) -> Iterator[Reading]:
    """Counters: sums over the pages of every attempt."""
    page_goodput_ns = [goodput_ns(page) for page in pages]
    for state in PAGE_STATES:
        seconds = sum(by_state[state] for by_state in page_goodput_ns) * 1e-9
        yield Reading(metrics.GOODPUT_SECONDS, (*labels, state), seconds)
    for metric in _SUMS:
        yield from _field_sums(metric, labels, pages)
    with_flops = [page for page in pages if page.periodic["flops_per_token"] is not None]
    if with_flops:
        # FLOPs a token are those of the whole model, whose tokens few ranks count.
        flops = sum(
            page.state["tokens"] * page.periodic["flops_per_token"]
            for page in with_flops
            if counts_data(page.identity["mesh"])
        )
        yield Reading(metrics.MODEL_FLOPS, labels, flops)


def _field_sums(metric: Metric, labels: Labels, pages: list[Page]) -> Iterator[Reading]:
    """The metric's field of the periodic slot, summed over the pages; by item where it has any."""
    fields = [page.periodic[metric.page_field] for page in pages]
    values = [value for value in fields if value is not None]
    if not values:
        return
    if not isinstance(values[0], Mapping):
        yield Reading(metric, labels, sum(values))
        return
    for item in values[0]:
        yield Reading(metric, (*labels, item), sum(by_item[item] for by_item in values))


def state_now(labels: Labels, current: list[Page], running: list[Page]) -> Iterator[Reading]:
    """Gauges of the newest attempt; those of memory, of the ranks that still run."""
    peaks = [page.periodic["peak_flops"] for page in current]
    # The sum over some of the GPUs would make the utilization that follows from it too high.
    if None not in peaks:
        yield Reading(metrics.PEAK_FLOPS, labels, sum(peaks))
    for item in current[0].periodic["anomaly_now"]:
        lasting = sum(page.periodic["anomaly_now"][item] for page in running)
        yield Reading(metrics.ANOMALOUS, (*labels, item), lasting)
    for memory, field in _MEMORY.items():
        sizes = [page.periodic[field] for page in running if page.periodic[field] is not None]
        yield from present(metrics.MEMORY_BYTES, (*labels, memory), max(sizes, default=None))
    yield from _failed_parts(labels, running)
    yield from _slowest_writer(labels, current)
    groups = compare_replicas(current)
    if groups:
        num_ranks, num_odd = (sum(len(g.ranks) for g in groups), sum(len(g.odd) for g in groups))
        yield Reading(metrics.REPLICAS, labels, num_ranks)
        yield Reading(metrics.ODD_REPLICAS, labels, num_odd)


def _failed_parts(labels: Labels, running: list[Page]) -> Iterator[Reading]:
    for part in metrics.PART.values:
        num_ranks = sum(page.periodic["part_errors"][part] > 0 for page in running)
        if num_ranks:  # a series for each part that works would be most of the job's series
            yield Reading(metrics.FAILED_PARTS, (*labels, part), num_ranks)


def _slowest_writer(labels: Labels, pages: list[Page]) -> Iterator[Reading]:
    """The rank that took longest for the newest checkpoint that any rank of the node wrote."""
    with_write = [page for page in pages if None not in _write(page)]
    if with_write:
        slowest = max(with_write, key=_write)
        rank = str(slowest.identity["rank"])
        yield Reading(metrics.SLOWEST_WRITER, (*labels, rank), slowest.periodic["write_seconds"])


def _write(page: Page) -> tuple[int | None, float | None]:
    """Step and seconds of the checkpoint that a rank wrote last."""
    return page.periodic["write_step"], page.periodic["write_seconds"]


def out_of_memory_readings(labels: Labels, pages: list[Page]) -> Iterator[Reading]:
    """Failed allocations of each rank that had some, over all attempts."""
    failed = Counter[int]()
    for page in pages:
        failed[page.identity["rank"]] += page.periodic["out_of_memory"]
    for rank in sorted(rank for rank, count in failed.items() if count)[:_MAX_NAMED_RANKS]:
        yield Reading(metrics.OUT_OF_MEMORY_RANK, (*labels, str(rank)), failed[rank])


def fingerprint_readings(labels: Labels, current: list[Page]) -> Iterator[Reading]:
    """Newest fingerprint of each part of the model that has replicas, maybe on other nodes."""
    by_part = defaultdict[str, list[Page]](list)
    for page in current:
        mesh = page.identity["mesh"]
        if "dp" in mesh and page.periodic["fingerprints"]:
            part = ",".join(f"{axis}={at}" for axis, at in sorted(mesh.items()) if axis != "dp")
            by_part[part or "all"].append(page)
    for part, pages in sorted(by_part.items()):
        of_ranks = [fingerprints_of(page) for page in pages]
        shared = set.intersection(*(set(by_step) for by_step in of_ranks))
        if not shared:
            continue
        step = max(shared)
        # Ranks of this node that differ are counted by another metric; the majority speaks here.
        (majority, _), *_ = Counter(by_step[step] for by_step in of_ranks).most_common(1)
        yield Reading(metrics.FINGERPRINT, (*labels, part), _as_gauge(majority))
        yield Reading(metrics.FINGERPRINT_STEP, (*labels, part), step)


def _as_gauge(fingerprint: Fingerprint) -> float:
    parameters, gradients = fingerprint
    return float((parameters * _MULTIPLIER + gradients) & _FINGERPRINT_BITS)
