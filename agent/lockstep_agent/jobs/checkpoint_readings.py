"""Checkpoints and restores of a job on this node, counted once however many ranks take part.

Every rank of a job counts the same save. Of an attempt a save is good when all ranks that write
say so, and bad when one of them does; the counts of the attempts add up.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator

from lockstep_agent.collector import AnyReading, HistogramReading, Reading
from lockstep_catalogue import training
from lockstep_catalogue.labels import RESTORE_OUTCOME, WRITING
from lockstep_records.page.layout import CHECKPOINT_BUCKET_ITEMS
from lockstep_records.page.reader import Page

Labels = tuple[str, ...]
_Combine = Callable[[list[int]], int]


def checkpoint_readings(labels: Labels, pages: list[Page]) -> Iterator[AnyReading]:
    """Counters over every attempt, and the histograms of the seconds that checkpoints took."""
    writers = _by_attempt([page for page in pages if _num_saves(page)])
    counts = {
        "ok": _total(writers, min, lambda page: page.state["checkpoints"]["ok"]),
        "failed": _total(writers, max, lambda page: page.state["checkpoints"]["failed"]),
        "invalid": _total(writers, max, lambda page: page.periodic["checkpoints_invalid"]),
    }
    for outcome, count in counts.items():
        yield Reading(training.CHECKPOINTS, (*labels, outcome), count)
    verified = _total(writers, min, lambda page: page.periodic["checkpoints_verified"])
    yield Reading(training.CHECKPOINTS_VERIFIED, labels, verified)
    if writers:
        yield from _histograms(labels, list(writers.values()))
    yield from _restores(labels, _by_attempt([page for page in pages if _num_restores(page)]))


def _num_saves(page: Page) -> int:
    outcomes: dict[str, int] = page.state["checkpoints"]
    return sum(outcomes.values()) + int(page.periodic["checkpoints_invalid"])


def _num_restores(page: Page) -> int:
    outcomes: dict[str, int] = page.periodic["restores"]
    return sum(outcomes.values())


def _by_attempt(pages: list[Page]) -> dict[int, list[Page]]:
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
            training.CHECKPOINT_SECONDS,
            (*labels, writing),
            tuple(sum(by_item[item] for by_item in buckets) for item in CHECKPOINT_BUCKET_ITEMS),
            sum(page.periodic[f"checkpoint_{writing}_seconds"] for page in lowest),
        )


def _restores(labels: Labels, attempts: dict[int, list[Page]]) -> Iterator[Reading]:
    for outcome in RESTORE_OUTCOME.values:
        combine: _Combine = min if outcome == "ok" else max
        count = _total(attempts, combine, _restores_that(outcome))
        yield Reading(training.RESTORES, (*labels, outcome), count)
    passed_over = _total(attempts, max, lambda page: page.periodic["passed_over"])
    yield Reading(training.PASSED_OVER, labels, passed_over)
    yield Reading(training.LOST_STEPS, labels, _total(attempts, max, _lost_steps))


def _lost_steps(page: Page) -> int:
    before, restored = page.periodic["step_before"], page.periodic["restored_step"]
    return 0 if before is None or restored is None else max(0, before - restored)
