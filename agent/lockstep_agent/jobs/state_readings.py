"""From the pages of one job on this node to its state: goodput, memory, checkpoints, replicas."""

from collections.abc import Iterator, Mapping

from lockstep_agent.collector import Reading, present
from lockstep_catalogue import Metric, collect
from lockstep_catalogue import training as metrics
from lockstep_catalogue.training import FAILED_PARTS, PART
from lockstep_outcomes.progress.goodput import PAGE_STATES, goodput_ns
from lockstep_records.page.data_ranks import counts_data
from lockstep_records.page.reader import Page
from lockstep_records.page.replicas import compare_replicas

Labels = tuple[str, ...]

_SUMS = tuple(metric for metric in collect(metrics, Metric) if metric.page_field)
_MEMORY = {
    "allocated": "device_allocated_bytes",
    "reserved": "device_reserved_bytes",
    "peak": "device_peak_bytes",
    "resident": "resident_bytes",
}


def state_totals(labels: Labels, pages: list[Page]) -> Iterator[Reading]:
    """Counters: sums over the pages of every attempt."""
    page_goodput_ns = [goodput_ns(page) for page in pages]
    for state in PAGE_STATES:
        seconds = sum(by_state[state] for by_state in page_goodput_ns) * 1e-9
        yield Reading(metrics.GOODPUT_SECONDS, (*labels, state), seconds)
    for metric in _SUMS:
        yield from _sums(metric, labels, pages)
    with_flops = [page for page in pages if page.periodic["flops_per_token"] is not None]
    if with_flops:
        # FLOPs a token are those of the whole model, whose tokens few ranks count.
        flops = sum(
            page.state["tokens"] * page.periodic["flops_per_token"]
            for page in with_flops
            if counts_data(page.identity["mesh"])
        )
        yield Reading(metrics.MODEL_FLOPS, labels, flops)


def _sums(metric: Metric, labels: Labels, pages: list[Page]) -> Iterator[Reading]:
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
    for part in PART.values:
        num_ranks = sum(page.periodic["part_errors"][part] > 0 for page in running)
        if num_ranks:  # a series for each part that works would be most of the job's series
            yield Reading(FAILED_PARTS, (*labels, part), num_ranks)


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
