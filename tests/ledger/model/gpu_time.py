"""GPU time of runs: who had how many GPUs for how long, and what they did."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .arrivals import Fact
from .runs import Run, Span
from .words import Words


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """A part of a job that the scheduler granted: a pod, a heterogeneous component.

    Attributes:
        end: None where the scheduler did not take it back.
    """

    begin: float
    end: float | None
    num_gpus: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuTime:
    """GPU-seconds of a run by goodput state; the total is their sum."""

    states: Mapping[str, float]

    @property
    def total(self) -> float:
        """GPU-seconds of all states."""
        return sum(self.states.values())


def allocations_of(words: Sequence[Fact]) -> list[Allocation]:
    """Parts from the scheduler's resources_allocated and resources_released, which are in order."""
    by_part: dict[str, list[Fact]] = defaultdict(list)
    for fact in words:
        if fact.kind in {"resources_allocated", "resources_released"}:
            by_part[str(fact.fields.get("part"))].append(fact)
    found: list[Allocation] = []
    for facts in by_part.values():
        for fact, following in zip(facts, [*facts[1:], None], strict=True):
            if fact.kind == "resources_allocated":
                is_end = following is not None and following.kind == "resources_released"
                end = following.time if following is not None and is_end else None
                gpus = fact.number("num_gpus") or 0.0
                found.append(Allocation(begin=fact.time, end=end, num_gpus=gpus))
    return found


def times_of_runs(
    runs: Sequence[Run], over: Sequence[bool], words: Words, parts: Sequence[Allocation]
) -> list[GpuTime]:
    """GPU time of each run.

    Args:
        runs: by begin.
        over: whether each has an end; of the others only what nodes have reported counts.
        words: on the job.
        parts: that the scheduler granted in all runs.
    """
    taken: dict[str, float] = {}
    times = []
    for run, is_over in zip(runs, over, strict=True):
        by_span = [_span_time(span, run, is_over, words, taken) for span in run.spans]
        states: dict[str, float] = defaultdict(float)
        for time in by_span:
            for state, seconds in time.states.items():
                states[state] += seconds
        total = _granted(run, runs, words, parts) if is_over else None
        times.append(GpuTime(states=dict(states) if total is None else _fit(states, total)))
        for span in run.spans:
            end = _effective_end(span, run, is_over)
            taken[span.node] = max(taken.get(span.node, end), end)
    return times


def span_gpus(span: Span, words: Words) -> float:
    """GPUs of a node in a span, by the best source that states them."""
    for kind in ("attempt_started", "goodput"):
        stated = [fact.number("num_gpus") for fact in span.facts if fact.kind == kind]
        values = [value for value in stated if value is not None]
        if values:
            return values[-1]
    gpus, nodes = words.value("num_gpus"), words.value("num_nodes")
    if gpus is not None and nodes:
        return float(gpus) / float(nodes)
    ranks = [fact.number("nproc_per_node") for fact in span.facts if fact.kind == "job_started"]
    return next((value for value in reversed(ranks) if value is not None), 0.0)


def granted_gpus(run: Run, words: Words) -> float | None:
    """GPUs of a run in the scheduler's newest word by its end; None where it says nothing."""
    value = words.scheduler_value("num_gpus", run.scheduler_end)
    return None if value is None else float(value)


def scaled_reports(span: Span, gpus: float) -> list[tuple[Fact, dict[str, float]]]:
    """Goodput reports of a span, in GPU-seconds by state."""
    reports = []
    for fact in span.facts:
        if fact.kind == "goodput":
            ranks = fact.number("num_ranks")
            share = 1.0 if ranks is None else gpus / ranks if ranks else 0.0
            seconds = {name: value * share for name, value in fact.fields["rank_seconds"].items()}
            reports.append((fact, seconds))
    return reports


def recoveries(span: Span) -> list[tuple[float, float]]:
    """Gaps of a span in which no attempt ran: begin and end of each."""
    kinds = {"job_started", "attempt_started", "attempt_ended"}
    edges = [fact for fact in span.facts if fact.kind in kinds]
    return [
        (ended.time, started.time)
        for ended, started in pairwise(edges)
        if ended.kind == "attempt_ended" and started.kind == "attempt_started"
    ]


def _effective_end(span: Span, run: Run, is_over: bool) -> float:
    """Where a node's time ends: as stated, by the scheduler, or with its last event."""
    if span.end is not None:
        return span.end
    end = span.last_heard
    if is_over and run.scheduler_end is not None:
        end = run.scheduler_end
    if span.bound is not None:
        end = min(end, span.bound)
    return max(end, span.begin)


def _span_time(
    span: Span, run: Run, is_over: bool, words: Words, taken: Mapping[str, float]
) -> GpuTime:
    gpus = span_gpus(span, words)
    begin = max(span.begin, taken.get(span.node, span.begin))
    had = max(0.0, _effective_end(span, run, is_over) - begin) * gpus
    highest: dict[tuple[int, str], float] = {}
    for fact, seconds in scaled_reports(span, gpus):
        for state, value in seconds.items():
            key = (fact.attempt, state)
            highest[key] = max(highest.get(key, 0.0), value)
    states: dict[str, float] = defaultdict(float)
    for (_, state), value in highest.items():
        states[state] += value
    for start, end in recoveries(span):
        states["recovery"] += (end - start) * gpus
    # A run that goes on has what its nodes have reported; one that is over has all it was given.
    total = had if is_over else min(had, sum(states.values()))
    return GpuTime(states=_fit(states, total))


def _fit(states: Mapping[str, float], total: float) -> dict[str, float]:
    """States that sum to a total: scaled down where they are more, unknown where they are less."""
    reported = sum(states.values())
    share = total / reported if reported > total else 1.0
    fitted = {state: seconds * share for state, seconds in states.items()}
    missing = max(0.0, total - reported)
    if missing:
        fitted["unknown"] = fitted.get("unknown", 0.0) + missing
    return fitted


def _granted(
    run: Run, runs: Sequence[Run], words: Words, parts: Sequence[Allocation]
) -> float | None:
    """GPU-seconds that the scheduler granted a run; None where it does not state them."""
    span = run.scheduler
    if span is None or span.end is None or not span.has_start:
        return None
    end = span.end
    if parts:
        own = [part for part in parts if _run_of_part(part, runs) is run]
        ends = [(part, end if part.end is None else part.end) for part in own]
        granted = sum(max(0.0, until - part.begin) * part.num_gpus for part, until in ends)
        return granted if own else None
    gpus = granted_gpus(run, words)
    return None if gpus is None else (end - span.begin) * gpus


def _run_of_part(part: Allocation, runs: Sequence[Run]) -> Run | None:
    """The newest run of the scheduler that begins at or before a part, else its first.

    Both are the scheduler's words, so that no slack is needed.
    """
    stated = [
        (span.begin, run) for run in runs if (span := run.scheduler) is not None and span.has_start
    ]
    earlier = [run for begin, run in stated if begin <= part.begin]
    return earlier[-1] if earlier else stated[0][1] if stated else None
