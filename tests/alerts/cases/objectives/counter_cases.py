"""Cases of objectives on counters: series of the counter itself, for promtool."""

from lockstep_alerts.objectives.limits import Limit
from lockstep_alerts.objectives.objective import Objective
from lockstep_catalogue.metric import Kind
from lockstep_catalogue.promql import LE

from ..case import Case
from ..synthetic import Course, Samples, Stretch, growing, samples
from .counts import labels_of

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
