"""The recorded series whose values the spec declares: goals, and limits of slices."""

from collections.abc import Iterable

from lockstep_alerts.objectives.objective import Objective
from lockstep_catalogue.ledger import JOB_CLASS, SLO
from lockstep_catalogue.metric import Recorded
from lockstep_catalogue.recorded_objectives import GOAL
from lockstep_catalogue.recorded_slices import SLICE_LIMIT


def declared(objectives: Iterable[Objective]) -> dict[Recorded, str]:
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
    series = ((GOAL, goals), (SLICE_LIMIT, limits))
    return {each: "\nor\n".join(constants) for each, constants in series if constants}


def _constant(value: float, labels: dict[str, str]) -> str:
    text = f"vector({value:g})"
    for name, label in labels.items():
        text = f'label_replace({text}, "{name}", "{label}", "", "")'
    return text
