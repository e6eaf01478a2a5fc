"""The recording rules of objectives: those of the catalogue, and what the spec declares."""

from collections.abc import Iterable, Iterator

from lockstep_alerts.objectives.objective import Objective
from lockstep_catalogue import recorded_objectives, recorded_slices
from lockstep_catalogue.ledger import JOB_CLASS, SLO
from lockstep_catalogue.metric import Recorded
from lockstep_catalogue.recorded_objectives import GOAL
from lockstep_catalogue.recorded_slices import SLICE_LIMIT
from lockstep_catalogue.windows import ScrapeWindows

_SERIES = (*recorded_slices.RECORDED, *recorded_objectives.RECORDED)


def records(
    objectives: Iterable[Objective], windows: ScrapeWindows
) -> Iterator[tuple[Recorded, str]]:
    """Each series with its PromQL, in an order in which every rule finds what it reads."""
    declared = tuple(objectives)
    constants = {
        GOAL: [
            (ratio, {SLO.name: each.slo, **({JOB_CLASS.name: name} if name else {})})
            for each in declared
            for name, ratio in each.goals.items()
        ],
        SLICE_LIMIT: [
            (each.min_ratio, {SLO.name: each.slo})
            for each in declared
            if each.min_ratio is not None
        ],
    }
    for series in _SERIES:
        if series not in constants:
            yield series, series.expression(windows)
        elif constants[series]:
            yield series, "\nor\n".join(_constant(*each) for each in constants[series])
        else:
            # A vector without samples: the rules that read it stay valid.
            yield series, "vector(0) > 0"


def _constant(value: float, labels: dict[str, str]) -> str:
    text = f"vector({value:g})"
    for name, label in labels.items():
        text = f'label_replace({text}, "{name}", "{label}", "", "")'
    return text
