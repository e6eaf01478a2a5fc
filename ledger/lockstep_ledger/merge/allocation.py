"""Allocation of a run: GPUs by model as a step function of time, from whoever may say so."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

MICRO = 1_000_000
Steps = dict[str, list[tuple[int, float]]]
"""By model: whole seconds, each with the GPUs from then on; the last one is 0 once it is over."""


class Interval(NamedTuple):
    """GPUs of one model from one moment to another; ``end`` is None while it goes on."""

    begin: float
    end: float | None
    gpus: float
    model: str = ""

    def end_by(self, until: float) -> float:
        """Its end, or a moment before it."""
        return until if self.end is None else min(self.end, until)

    def seconds(self, since: float, until: float) -> float:
        """GPU-seconds of it in a period."""
        return max(0.0, self.end_by(until) - max(self.begin, since)) * self.gpus


def gpu_seconds(
    intervals: Iterable[Interval], since: float = -math.inf, until: float = math.inf
) -> float:
    """GPU-seconds of a period; of what goes on ``until`` is the end."""
    return math.fsum(each.seconds(since, until) for each in intervals)


def side_by_side(
    granted: Iterable[Interval], used: Iterable[Interval]
) -> Iterator[tuple[float, float, float, float]]:
    """Begin, end, and the GPUs of each side in between, up to infinity."""
    edges = sorted(
        (time, side, sign * each.gpus)
        for side, intervals in enumerate((granted, used))
        for each in intervals
        for time, sign in ((each.begin, 1.0), (each.end_by(math.inf), -1.0))
        if time < math.inf
    )
    held = [0.0, 0.0]
    for (time, side, change), (following, *_) in pairwise([*edges, (math.inf, 0, 0.0)]):
        held[side] += change
        if following > time:
            yield time, following, held[0], held[1]


def gpus_at_end(intervals: Sequence[Interval], slack_seconds: float) -> float:
    """GPUs that are held last, those given back just before the last ones among them."""
    last = max((math.inf if i.end is None else i.end for i in intervals), default=0.0)
    own = (i for i in intervals if i.end is None or i.end >= last - slack_seconds)
    return math.fsum(each.gpus for each in own)


def step_intervals(
    begin: float, end: float | None, words: Sequence[tuple[float, float, str]]
) -> Iterator[Interval]:
    """What words in the order of time give a period; the first one holds before its time too."""
    last = math.inf if end is None else end
    cuts = [begin, *(min(max(time, begin), last) for time, *_ in words[1:]), last]
    for (since, until), (_, gpus, model) in zip(pairwise(cuts), words, strict=True):
        if until > since and gpus:
            yield Interval(since, None if until == math.inf else until, gpus, model)


def share_models(granted: Iterable[Interval], used: Sequence[Interval]) -> Iterator[Interval]:
    """Gives GPUs without a model those of the launchers, at each time in their shares."""
    models = {each.model for each in used}
    if len(models) < 2:  # noqa: PLR2004  # one model, or none that is known
        model = next(iter(models), "")
        yield from (each._replace(model=each.model or model) for each in granted)
        return
    for each in granted:
        if each.model:
            yield each
            continue
        times = {t for u in used for t in (u.begin, u.end) if t is not None}
        last = math.inf if each.end is None else each.end
        cuts = sorted({each.begin, last, *(t for t in times if each.begin < t < last)})
        for since, until in pairwise(cuts):
            here = [u for u in used if u.begin <= since and (u.end is None or u.end >= until)]
            shares: dict[str, float] = defaultdict(float)
            for own in here or used:
                shares[own.model] += own.gpus
            total = math.fsum(shares.values())
            end = None if until == math.inf else until
            for model, gpus in shares.items():
                yield Interval(since, end, each.gpus * gpus / total, model)


def steps_of(intervals: Iterable[Interval]) -> Steps:
    """The step function of intervals, each second with its mean: days and months begin with one.

    Whole millionths of a GPU: their sum over a thousand nodes is the same whatever its order is.
    """
    edges: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for each in intervals:
        micros = round(each.gpus * MICRO)
        for time, sign in ((each.begin, 1), (each.end_by(math.inf), -1)):
            if time < math.inf:
                second = math.floor(time)
                later = round(each.gpus * MICRO * (time - second))
                edges[each.model][second] += sign * (micros - later)
                edges[each.model][second + 1] += sign * later
    steps: Steps = {}
    for model, by_second in sorted(edges.items()):
        held, steps[model] = 0, []
        for second, change in sorted(by_second.items()):
            held += change
            if change:
                steps[model].append((second, held / MICRO))
    return {model: found for model, found in steps.items() if found}


def pieces(
    steps: Mapping[str, Sequence[tuple[int, float]]], until: float
) -> Iterator[tuple[str, float, float, float]]:
    """Model, begin, end and GPUs of each step; the last one of a run that goes on ends then."""
    for model, own in steps.items():
        for (begin, gpus), (end, _) in pairwise([*own, (max(until, own[-1][0]), 0.0)]):
            if gpus and min(end, until) > begin:
                yield model, float(begin), float(min(end, until)), gpus


def held(steps: Mapping[str, Sequence[tuple[int, float]]], until: float) -> float:
    """GPU-seconds of all steps up to a time."""
    return math.fsum((end - begin) * gpus for _, begin, end, gpus in pieces(steps, until))
