"""What the reports of a node add to its span, and to the windows at the time of the report."""

import math
from collections.abc import Iterator

from lockstep_catalogue.vocabulary import GOODPUT_STATES
from lockstep_ledger.merge.plausible import most_seconds
from lockstep_ledger.merge.spans import Span, WindowRow
from lockstep_outcomes.progress.ettr import PROGRESS_STATES
from lockstep_records.events.event import Event

_STARTS = frozenset({"job_started", "attempt_started"})


def note(span: Span, event: Event) -> None:
    """Notes starts of attempts and words on the GPUs."""
    if event.kind in _STARTS:
        earliest = span.starts.get(event.attempt, event.time)
        span.starts[event.attempt] = min(earliest, event.time)
        span.last_start = event.time
    gpus = event.number("num_gpus")
    if gpus is not None and event.kind in {"attempt_started", "resources_allocated"}:
        span.gpus_started = gpus
    elif gpus is not None and event.kind == "goodput":
        span.gpus_reported = gpus


def count(span: Span, event: Event, gpus: float) -> Iterator[WindowRow]:
    """Adds recoveries between attempts, and what totals of an attempt have grown by.

    Totals are seconds of ranks; times GPUs over ranks they are GPU-seconds. A total that fell,
    because the page was written anew, adds nothing until it has passed its old height.
    """
    if span.gpus is None or not (span.goodput or span.recovery_seconds):
        span.gpus = gpus
    if event.kind == "attempt_ended":
        span.gap = event.time
    elif event.kind == "attempt_started" and span.gap is not None:
        seconds, span.gap = event.time - span.gap, None
        span.recovery_seconds += seconds
        yield from _rows(event.time, {"recovery": seconds * span.gpus})
    elif event.kind == "goodput":
        ranks = event.number("num_ranks")
        scale = 1.0 if ranks is None else span.gpus / ranks if ranks else 0.0
        highest, grown = span.goodput.setdefault(event.attempt, {}), {}
        for state, seconds in event.numbers("rank_seconds").items():
            growth = seconds * scale - highest.get(state, 0.0)
            if growth > 0 and state in GOODPUT_STATES:
                highest[state], grown[state] = seconds * scale, growth
        # No claim counts more in the windows than the GPUs can have had by then.
        total = math.fsum(grown.values())
        seconds = most_seconds(span.begin, event.time, span.early_seconds)
        most = span.gpus * seconds - span.counted
        share = min(1.0, max(0.0, most) / total) if total else 0.0
        span.counted += total * share
        yield from _rows(event.time, {s: value * share for s, value in grown.items()})


def _rows(time: float, grown: dict[str, float]) -> Iterator[WindowRow]:
    """Rows of what grew; unreported time does not count as bad: telemetry has its own objective."""
    total = math.fsum(seconds for state, seconds in grown.items() if state != "unknown")
    if total > 0:
        moving = math.fsum(grown.get(state, 0.0) for state in PROGRESS_STATES)
        yield WindowRow(time, "goodput", grown.get("productive", 0.0), total)
        yield WindowRow(time, "ettr", moving, total)
