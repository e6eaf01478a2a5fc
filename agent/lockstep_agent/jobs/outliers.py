"""Ranks of a job that stand out on this node, and fingerprints to compare with other nodes."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator

from lockstep_agent.collector import Reading
from lockstep_catalogue import training as metrics
from lockstep_records.page.reader import Page, newest_rows
from lockstep_records.page.replicas import Fingerprint, fingerprints_of

Labels = tuple[str, ...]
_NUM_ROWS = 64
_MAX_NAMED_RANKS = 8
# A gauge holds integers up to 2^53; the multiplier keeps the two halves from cancelling out.
_FINGERPRINT_BITS = (1 << 52) - 1
_MULTIPLIER = 0x9E3779B97F4A7C15
_FIELDS = {
    "samples": "samples",
    "tokens": "tokens",
    "longest_sequence": "sequence_max",
    "squares": "sequence_squares",
}


def load_readings(labels: Labels, current: list[Page]) -> Iterator[Reading]:
    """Of each load the node's median and its heaviest rank; absent where no rank reports it."""
    rows_by_rank = {page.identity["rank"]: newest_rows(page, _NUM_ROWS) for page in current}
    for load, field in _FIELDS.items():
        means = {
            rank: statistics.fmean(reported)
            for rank, rows in rows_by_rank.items()
            if (reported := [row[field] for row in rows if row[field] is not None])
        }
        if not any(means.values()):
            continue
        # Of equal ranks the lowest, so that a healthy job has one series and not each in turn.
        heaviest = max(means, key=lambda rank: (means[rank], -rank))
        heaviest_labels = (*labels, str(heaviest), load)
        yield Reading(metrics.HEAVIEST_LOAD, heaviest_labels, means[heaviest])
        yield Reading(metrics.MEDIAN_LOAD, (*labels, load), statistics.median(means.values()))


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
