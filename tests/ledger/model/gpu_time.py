"""GPU time of runs as the sum of intervals: who had how many GPUs from when to when."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .arrivals import Fact
from .runs import Run, Span
from .words import Words

UNUSED = "idle"


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """GPUs from one moment to another."""

    begin: float
    end: float
    gpus: float

    def seconds(self, since: float, until: float) -> float:
        """GPU-seconds of it between two moments."""
        return max(0.0, min(self.end, until) - max(self.begin, since)) * self.gpus


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part of a job that the scheduler granted: up to its end, else at most to its next word."""

    begin: float
    end: float | None
    bound: float
    gpus: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuTime:
    """GPU-seconds of a run by goodput state, of which the total is the sum; and its intervals."""

    states: Mapping[str, float]
    intervals: Sequence[Interval]
    used: Sequence[Interval]
    is_explained: bool
    is_granted: bool = False

    @property
    def counted(self) -> Mapping[str, float]:
        """States that counters hold: what no report explains may change while a run goes on."""
        return {s: v for s, v in self.states.items() if self.is_explained or s != "unknown"}

    @property
    def total(self) -> float:
        """GPU-seconds of all states."""
        return sum(self.states.values())

    def between(self, since: float, until: float) -> float:
        """GPU-seconds between two moments."""
        return sum(each.seconds(since, until) for each in self.intervals)

    @property
    def gpus(self) -> float:
        """GPUs of those that end last."""
        return _at_end(self.intervals)

    @property
    def not_granted(self) -> set[float]:
        """GPUs that launchers state where fewer were granted, for more than a minute."""
        every = (*self.intervals, *self.used)
        cuts = sorted({time for each in every for time in (each.begin, each.end)})
        found = set[float]()
        for since, until in pairwise(cuts) if self.is_granted else ():
            sums = [
                sum(e.gpus for e in side if e.begin <= since and until <= e.end)
                for side in (self.intervals, self.used)
            ]
            if until - since > 60.0 and sums[1] > sums[0] > 0:
                found.add(sums[1])
        return found


def _at_end(intervals: Sequence[Interval]) -> float:
    """GPUs of those that end last, within the slack of clocks."""
    own = [each for each in intervals if each.end > each.begin]
    last = max((each.end for each in own), default=0.0)
    return sum(each.gpus for each in own if each.end >= last - 5.0)


def parts_of(words: Sequence[Fact]) -> list[Part]:
    """Parts by the scheduler's resources_allocated and resources_released, which are in order."""
    by_part: dict[str, list[Fact]] = defaultdict(list)
    for fact in words:
        if fact.kind in {"resources_allocated", "resources_released"}:
            by_part[str(fact.fields.get("part"))].append(fact)
    return [
        Part(
            begin=fact.time,
            end=following.time if following and following.kind == "resources_released" else None,
            bound=float("inf") if following is None else following.time,
            gpus=fact.number("num_gpus") or 0.0,
        )
        for facts in by_part.values()
        for fact, following in zip(facts, [*facts[1:], None], strict=True)
        if fact.kind == "resources_allocated"
    ]


def times_of_runs(
    runs: Sequence[Run], over: Sequence[bool], words: Words, parts: Sequence[Part]
) -> list[GpuTime]:
    """GPU time of each run; of those that are not over only what nodes have reported counts."""
    times = []
    for run, is_over in zip(runs, over, strict=True):
        states: dict[str, float] = defaultdict(float)
        used: list[Interval] = []
        for span in run.spans:
            own = _used(span, _end_of(span, run, is_over), words)
            is_open = span.end is None and span.bound is None and not is_over
            used += _used(span, math.inf, words) if is_open else own
            for state, seconds in _states(span, own, is_over, words).items():
                states[state] += seconds
        granted = _granted(run, is_over, runs, words, parts)
        held = used if granted is None else granted
        until = math.inf if is_over else math.floor(run.heard)  # whole seconds
        shared = _shared(held, used, until)
        states = defaultdict(float, _fit(states, shared, "unknown"))
        unused = sum(each.seconds(each.begin, until) for each in held) - shared
        after = math.inf if run.scheduler_end is None else run.scheduler_end
        late = [each for each in granted or () if each.end > after + 5.0]
        after_end = min(unused, sum(each.seconds(after, until) for each in late))
        if unused > 1e-9:
            states[UNUSED if run.spans else "unknown"] += unused - after_end
            states["held_after_end"] += after_end
        is_explained = is_over or not run.spans
        times.append(
            GpuTime(states=states, intervals=held, used=used, is_explained=is_explained,
                    is_granted=granted is not None)
        )  # fmt: skip
    return times


def _shared(left: Sequence[Interval], right: Sequence[Interval], until: float) -> float:
    """GPU-seconds that both have, up to a moment."""
    every = (*left, *right)
    cuts = sorted({min(t, until) for each in every for t in (each.begin, each.end)} - {math.inf})
    total = 0.0
    for since, end in pairwise(cuts):
        sums = (sum(e.seconds(since, end) for e in side) for side in (left, right))
        total += min(sums)
    return total


def _steps(begin: float, end: float, stated: Sequence[tuple[float, float]]) -> list[Interval]:
    """Intervals by words, of which the newest holds, and the first from the begin on."""
    cuts = sorted({begin, end, *(time for time, _ in stated if begin < time < end)})
    found: list[Interval] = []
    for since, until in pairwise(cuts):
        gpus = next((own for time, own in reversed(stated) if time <= since), stated[0][1])
        begin = found.pop().begin if found and found[-1].gpus == gpus else since
        found.append(Interval(begin=begin, end=until, gpus=gpus))
    return found


def _stated(facts: Iterable[Fact]) -> list[tuple[float, float]]:
    """When a node states its own GPUs, by the best source that does."""
    for kind in ("attempt_started", "goodput"):
        own = [(f.time, f.number("num_gpus")) for f in facts if f.kind == kind]
        numbers = [(time, gpus) for time, gpus in own if gpus is not None]
        if numbers:
            return numbers
    return []


def gpus_by(span: Span, until: Fact, words: Words) -> float:
    """GPUs of a node as it is known when it says something, its own word among them."""
    stated = _stated([fact for fact in span.facts if fact.key <= until.key])
    return stated[-1][1] if stated else _assumed(span, words)


def _assumed(span: Span, words: Words) -> float:
    """GPUs of a node that states none: its share of the job's, or its ranks."""
    gpus, nodes = words.value("num_gpus"), words.value("num_nodes")
    if gpus is not None and nodes:
        return float(gpus) / float(nodes)
    ranks = [fact.number("nproc_per_node") for fact in span.facts if fact.kind == "job_started"]
    return next((value for value in reversed(ranks) if value is not None), 0.0)


def held_by(span: Span, until: Fact, words: Words) -> float:
    """GPU-seconds that a node can have had in a span when it says something."""
    so_far = [fact for fact in span.facts if fact.key <= until.key]
    stated = _stated(so_far) or [(span.begin, _assumed(span, words))]
    end = max(span.begin, until.time)
    return sum(each.seconds(span.begin, end) for each in _steps(span.begin, end, stated))


def scaled_reports(span: Span, words: Words) -> list[tuple[Fact, dict[str, float]]]:
    """Goodput reports of a span, in GPU-seconds by state."""
    reports = []
    for fact in span.facts:
        if fact.kind == "goodput":
            gpus, ranks = gpus_by(span, fact, words), fact.number("num_ranks")
            share = 1.0 if ranks is None else gpus / ranks if ranks else 0.0
            seconds = {name: value * share for name, value in fact.fields["rank_seconds"].items()}
            reports.append((fact, seconds))
    return reports


def recoveries(span: Span, words: Words) -> list[tuple[float, float]]:
    """End and GPU-seconds of each gap of a span in which no attempt ran."""
    kinds = {"job_started", "attempt_started", "attempt_ended"}
    edges = [fact for fact in span.facts if fact.kind in kinds]
    found = []
    for ended, started in pairwise(edges):
        if ended.kind == "attempt_ended" and started.kind == "attempt_started":
            before = [fact for fact in span.facts if fact.key < started.key]
            stated = _stated(before)
            gpus = stated[-1][1] if stated else gpus_by(span, started, words)
            found.append((started.time, (started.time - ended.time) * gpus))
    return found


def _end_of(span: Span, run: Run, is_over: bool) -> float:
    """Where a node's time ends: as stated, by the scheduler, or with its last event."""
    if span.end is not None:
        return span.end
    end = span.last_heard
    if is_over and run.scheduler_end is not None:
        end = run.scheduler_end
    if span.bound is not None:
        end = min(end, span.bound)
    return max(end, span.begin)


def _used(span: Span, end: float, words: Words) -> list[Interval]:
    stated = _stated(span.facts) or [(span.begin, _assumed(span, words))]
    return _steps(span.begin, end, stated)


def _states(
    span: Span, used: Sequence[Interval], is_over: bool, words: Words
) -> Mapping[str, float]:
    highest: dict[tuple[int, str], float] = {}
    for fact, seconds in scaled_reports(span, words):
        for state, value in seconds.items():
            key = (fact.attempt, state)
            highest[key] = max(highest.get(key, 0.0), value)
    states: dict[str, float] = defaultdict(float)
    for (_, state), value in highest.items():
        states[state] += value
    for _, seconds_lost in recoveries(span, words):
        states["recovery"] += seconds_lost
    # A run that goes on has what its nodes have reported; one that is over has all it was given.
    had = sum(each.seconds(each.begin, each.end) for each in used)
    total = had if is_over else min(had, sum(states.values()))
    return _fit(states, total, "unknown")


def _fit(states: Mapping[str, float], total: float, rest: str) -> dict[str, float]:
    """States that sum to a total: scaled down where they are more, with a rest where less."""
    reported = sum(states.values())
    share = total / reported if reported > total else 1.0
    fitted = {state: seconds * share for state, seconds in states.items()}
    if total > reported:
        fitted[rest] = fitted.get(rest, 0.0) + total - reported
    return fitted


def _granted(
    run: Run, is_over: bool, runs: Sequence[Run], words: Words, parts: Sequence[Part]
) -> list[Interval] | None:
    """What the scheduler granted a run; None where it does not state it."""
    span = run.scheduler
    if span is None or not span.has_start:
        return None
    words_of_end = (span.end, None if run.spans else span.bound, run.end if is_over else None)
    end = next((time for time in words_of_end if time is not None), math.inf)
    own = [part for part in parts if _run_of_part(part, runs) is run]
    if own:
        following = min(
            (r.scheduler.begin for r in runs if r.scheduler and r.scheduler.begin > span.begin),
            default=math.inf,
        )
        ends = [
            part.end or (part.bound if part.bound < following else max(end, part.begin))
            for part in own
        ]
        return [
            Interval(begin=part.begin, end=until, gpus=part.gpus)
            for part, until in zip(own, ends, strict=True)
        ]
    stated = [
        (fact.time, float(fact.fields["num_gpus"]))
        for fact in words.scheduler
        if fact.fields.get("num_gpus") is not None and fact.time < end
    ]
    if not stated:
        return None
    return _steps(span.begin, end, stated)


def _run_of_part(part: Part, runs: Sequence[Run]) -> Run | None:
    """The newest run of the scheduler that begins at or before a part, else its first."""
    stated = [
        (span.begin, run) for run in runs if (span := run.scheduler) is not None and span.has_start
    ]
    earlier = [run for begin, run in stated if begin <= part.begin]
    return earlier[-1] if earlier else stated[0][1] if stated else None
