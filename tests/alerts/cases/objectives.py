"""Cases of objectives."""

import math
from collections.abc import Mapping

from lockstep_alerts.objectives.conditions import BudgetSpent, Burn, GpuSecondBurn, SliceWorse
from lockstep_alerts.objectives.objective import BurnLimit, Limit, Objective
from lockstep_catalogue import training
from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.ledger import EVENT_SLOS, SLO, SLO_EVENT, SLO_EVENTS, SLO_WINDOWS, WINDOW
from lockstep_catalogue.metric import Kind
from lockstep_catalogue.promql import LE
from lockstep_catalogue.recorded import PERIOD

from .case import Case, proves
from .synthetic import (
    HEALTHY,
    JOB,
    ONE_NODE,
    Course,
    Regime,
    Samples,
    Stretch,
    Timing,
    growing,
    samples,
    steady,
    stepping,
)

_FEW_EVENTS, _MANY_EVENTS = 200, 40_000  # in 28 days: 50 and 10,000 a week


def _least(limit: Limit, bad_ratio: float, total: int) -> int:
    """Of a case with so many events in the period."""
    return limit.least_bad(bad_ratio, round(limit.events(total)))


@proves(Burn)
def burn(condition: Burn, timing: Timing) -> list[Case]:
    if condition.objective.counter is not None:
        return counter_cases(condition.objective, condition.limits[0])
    first, bad_ratio, slo = (
        condition.limits[0],
        condition.objective.bad_ratio,
        condition.objective.slo,
    )

    def job(total: int, limit: Limit, fewer: int = 0, num_recent: int = 1) -> list[Samples]:
        at_limit = _least(limit, bad_ratio, total) - fewer
        bad = bad_by_window(limit.window, at_limit, num_recent)
        return counts(timing, slo, total, bad)

    at_limits = [
        Case(f"{each.window} at its limit", job(_FEW_EVENTS, each), labels_of(slo, each.window))
        for each in condition.limits
    ]
    one_fewer = Case("one event fewer", job(_FEW_EVENTS, first, 1))
    if slo != EVENT_SLOS[0]:
        # Objectives differ in their figures only, and each case takes promtool a second.
        return [at_limits[0], one_fewer]
    cases = [
        *at_limits,
        one_fewer,
        Case("many events, one fewer", job(_MANY_EVENTS, first, 1)),
        Case("nothing ran", counts(timing, slo, 0, {})),
    ]
    if first.recent is not None:
        old = job(_FEW_EVENTS, first, num_recent=0)
        cases.append(Case("the last event is long ago", old))
    return cases


_EVENTS = 200  # in 28 days: 50 a week


@proves(BudgetSpent)
def budget_spent(condition: BudgetSpent, timing: Timing) -> list[Case]:
    first = condition.objectives[0]
    allowed = math.floor(first.bad_ratio * _EVENTS + 1e-9)

    def spent(total: int, bad: int) -> list[Samples]:
        return counts(timing, first.slo, total, bad_by_window(PERIOD, bad, min(bad, 1)))

    labels = {CLUSTER.name: "c1", SLO.name: first.slo}
    return [
        Case("one event above the budget", spent(_EVENTS, allowed + 1), labels),
        Case("all of the budget and no more", spent(_EVENTS, allowed)),
        Case("nothing ran", spent(0, 0)),
    ]


_BEFORE_SECONDS, _AFTER_SECONDS = 900, 1200
_GOOD, _BAD = 20, 10


def counter_cases(objective: Objective, limit: Limit) -> list[Case]:
    """Ten bad events among thirty, and twenty good ones."""
    at = _BEFORE_SECONDS + _AFTER_SECONDS
    return [
        Case(
            name,
            _series(objective, num_bad),
            labels_of(objective.slo, limit.window) if fires else None,
            at,
        )
        for name, num_bad, fires in (("some are bad", _BAD, True), ("all are good", 0, False))
    ]


def _series(objective: Objective, num_bad: int) -> list[Samples]:
    counter = objective.counter
    assert counter is not None
    is_histogram = counter.metric.kind is Kind.HISTOGRAM
    labels = {"cluster": "c1", "instance": "x:1"}
    every = {m.label.name: m.value.split("|")[0] for m in counter.all}
    good = {**every, **{m.label.name: m.value.split("|")[0] for m in counter.good}}
    suffix = "_bucket" if is_histogram else ""
    others = {**good, LE.name: "+Inf"} if is_histogram else _different(objective, good)
    num_others = _GOOD + num_bad if is_histogram else num_bad
    return [
        samples(counter.metric, _course(_GOOD), suffix, **labels, **good),
        samples(counter.metric, _course(num_others), suffix, **labels, **others),
    ]


def _different(objective: Objective, good: dict[str, str]) -> dict[str, str]:
    """Labels of a series that is counted and is not good."""
    counter = objective.counter
    assert counter is not None
    matcher = counter.good[0]
    taken = matcher.value.split("|")
    value = next((v for v in matcher.label.values if v not in taken), "another")
    return {**good, matcher.label.name: value}


def _course(number: int) -> Course:
    return growing(
        Stretch(_BEFORE_SECONDS, 0), Stretch(300, number / 300), Stretch(_AFTER_SECONDS, 0)
    )


_CLUSTER, _INSTANCE = "c1", "ledger:9450"


def labels_of(slo: str, window: str) -> dict[str, str]:
    """Labels of an objective's counts in a window."""
    return {CLUSTER.name: _CLUSTER, SLO.name: slo, WINDOW.name: window}


def bad_by_window(window: str, num_bad: int, num_recent: int = 1) -> dict[str, int]:
    """All bad events lie within this window, and ``num_recent`` of them in the shortest ones."""
    seconds = SLO_WINDOWS[window]
    return {
        name: num_bad if length >= seconds else num_recent for name, length in SLO_WINDOWS.items()
    }


def counts(timing: Timing, slo: str, total: int, bad: Mapping[str, int]) -> list[Samples]:
    """Counts in every window; the bad events come at the onset, all at once.

    Args:
        timing: the onset, and how long the counts go on after it.
        slo: name of the objective.
        total: events in 28 days; shorter windows hold their share.
        bad: bad events by window.
    """
    onset, after = timing.onset_seconds, timing.fires_within_seconds
    series = []
    for window, seconds in SLO_WINDOWS.items():
        num_bad = bad.get(window, 0)
        events = max(num_bad, round(total * seconds / SLO_WINDOWS[PERIOD]))
        failing = (Stretch(onset, 0), Stretch(1, -num_bad), Stretch(after, 0))
        courses = {"total": steady(events, onset + after), "good": growing(*failing, start=events)}
        series += [
            samples(
                SLO_EVENTS,
                course,
                instance=_INSTANCE,
                **labels_of(slo, window),
                **{SLO_EVENT.name: kind},
            )
            for kind, course in courses.items()
        ]
    return series


_MARGIN = 0.01  # of all GPU-seconds, above and below a limit


@proves(GpuSecondBurn)
def gpu_second_burn(condition: GpuSecondBurn, timing: Timing) -> list[Case]:
    first, bad_ratio = condition.limits[0], condition.objective.bad_ratio
    gpus = 2 * condition.objective.min_gpus
    above = {each: each.bad_share(bad_ratio) + _MARGIN for each in condition.limits}
    high, low = above[first], above[first] - 2 * _MARGIN

    def job(limit: BurnLimit, share: float, recent: float, num_gpus: float) -> list[Samples]:
        total, bad = round(num_gpus * SLO_WINDOWS[PERIOD]), _bad(limit, share, recent, num_gpus)
        return counts(timing, condition.objective.slo, total, bad)

    return [
        *(
            Case(
                f"{each.window} above its limit",
                job(each, share, share, gpus),
                labels_of(condition.objective.slo, each.window),
            )
            for each, share in above.items()
        ),
        Case("below the limit", job(first, low, low, gpus)),
        Case("the last minutes are good", job(first, high, 0, gpus)),
        Case("too few GPUs", job(first, high, high, condition.objective.min_gpus / 2)),
        Case("nothing ran", job(first, 0, 0, 0)),
    ]


def _bad(limit: BurnLimit, share: float, recent: float, num_gpus: float) -> dict[str, int]:
    """Bad GPU-seconds by window, with shares of their own before and in the recent one."""
    return {
        window: round(
            num_gpus * seconds * (recent if seconds <= SLO_WINDOWS[limit.recent] else share)
        )
        for window, seconds in SLO_WINDOWS.items()
        if seconds <= SLO_WINDOWS[limit.window]
    }


_HEALTHY_SECONDS = 45 * 60
"""Of a case: half an hour of slices makes a baseline, and the first five minutes are no slice."""


_TOKENS_PER_STEP, _BUS_RATE = 1000, 1e9
_STEP_SECONDS = sum(HEALTHY.values())


@proves(SliceWorse)
def slice_worse(condition: SliceWorse, timing: Timing) -> list[Case]:
    slow, nearly = condition.min_ratio * 0.93, min(1.0, condition.min_ratio * 1.05)
    outlines = (
        ("it becomes worse than the limit", slow, True),
        ("it becomes a little worse", nearly, False),
    )
    return [
        Case(
            name,
            _job(condition.objective.slo, ratio, timing.fires_within_seconds),
            JOB if fires else None,
            _HEALTHY_SECONDS + timing.fires_within_seconds,
        )
        for name, ratio, fires in outlines
    ]


def _job(slo: str, ratio: float, after_seconds: int) -> list[Samples]:
    """A job that is healthy for a time, and then so good against it; only sync grows."""
    share = HEALTHY["sync"] / _STEP_SECONDS / ratio
    more = {
        # The share of sync in a step that grows by it: (sync + more) / (step + more).
        "gradient_sync": (share * _STEP_SECONDS - HEALTHY["sync"]) / (1 - share)
    }.get(slo, _STEP_SECONDS / ratio - _STEP_SECONDS)
    worse = {**HEALTHY, "sync": HEALTHY["sync"] + more}
    # One rank: a promtool case over an hour costs by the sample.
    regimes = (Regime(_HEALTHY_SECONDS, (HEALTHY,)), Regime(after_seconds, (worse,)))
    tokens = [Stretch(regime.seconds, _TOKENS_PER_STEP / regime.step_seconds) for regime in regimes]
    node = {**ONE_NODE[0].labels, "node": "n1"}
    bus = growing(
        Stretch(_HEALTHY_SECONDS, 0),
        Stretch(1, _BUS_RATE * (ratio - 1)),
        Stretch(after_seconds, 0),
        start=_BUS_RATE,
    )
    return [
        samples(training.RANK_INFO, steady(1, sum(r.seconds for r in regimes)), rank="0", **node),
        *stepping(*regimes),
        samples(training.TOKENS, growing(*tokens), **node),
        samples(training.BUS_RATE, bus, **node, kind="all_reduce"),
    ]
