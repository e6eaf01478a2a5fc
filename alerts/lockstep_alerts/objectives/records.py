"""The recorded series whose values the spec declares: goals, and limits of slices."""

from collections.abc import Iterable, Mapping

from lockstep_alerts.objectives.objective import Counter, Objective, sum_in_window
from lockstep_alerts.rules import objective_series
from lockstep_catalogue import recorded
from lockstep_catalogue.ledger import JOB_CLASS, SLO, WINDOW
from lockstep_catalogue.metric import Recorded
from lockstep_catalogue.promql import Matcher
from lockstep_catalogue.windows import ScrapeWindows


def declared_by_spec(
    objectives: Iterable[Objective], windows: ScrapeWindows
) -> dict[Recorded, str]:
    """PromQL of each such series."""
    every = tuple(objectives)
    goals = [
        _constant(ratio, {SLO.name: each.slo, **({JOB_CLASS.name: name} if name else {})})
        for each in every
        for name, ratio in each.goals.items()
    ]
    limits = [
        _constant(each.min_ratio, {SLO.name: each.slo})
        for each in every
        if each.min_ratio is not None
    ]
    counted = {each.slo: each.counter for each in every if each.counter is not None}
    totals = {slo: each.total_of_five_minutes(windows) for slo, each in counted.items()}
    bad = {slo: each.bad_of_five_minutes(windows) for slo, each in counted.items()}
    series = (
        (recorded.GOAL, goals),
        (recorded.SLICE_LIMIT, limits),
        (recorded.COUNTER_TOTAL, [_labelled(x, {SLO.name: slo}) for slo, x in totals.items()]),
        (recorded.COUNTER_BAD, [_labelled(x, {SLO.name: slo}) for slo, x in bad.items()]),
        (recorded.TOTAL_EVENTS, _with_counters(recorded.TOTAL_EVENTS, counted)),
        (recorded.BAD_EVENTS, _with_counters(recorded.BAD_EVENTS, counted)),
    )
    return {each: "\nor\n".join(constants) for each, constants in series if constants}


def _with_counters(series: Recorded, counted: Mapping[str, Counter]) -> list[str]:
    """The counts of the ledger and of slices, and those of counters in each window."""
    if not counted:
        return []
    parts = [objective_series.COUNTS[series]]
    for slo, counter in counted.items():
        named = Matcher(SLO, "=", slo)
        for window in counter.windows():
            count = sum_in_window(window, is_bad=series is recorded.BAD_EVENTS, matcher=named)
            parts.append(_labelled(count, {WINDOW.name: window}))
    return parts


def _constant(value: float, labels: dict[str, str]) -> str:
    return _labelled(f"vector({value:g})", labels)


def _labelled(text: str, labels: dict[str, str]) -> str:
    for name, label in labels.items():
        text = f'label_replace({text}, "{name}", "{label}", "", "")'
    return text
