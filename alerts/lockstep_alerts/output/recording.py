"""The PromQL of every recorded series of a spec."""

from collections.abc import Iterable

from lockstep_alerts.objectives.records import declared_by_spec
from lockstep_alerts.rules import goodput, objective_series, slice_counts, slices, steps
from lockstep_alerts.rules.parameters import Expression
from lockstep_alerts.spec import Spec
from lockstep_catalogue.metric import Recorded

_EXPRESSIONS: dict[Recorded, Expression] = {
    **steps.EXPRESSIONS,
    **goodput.EXPRESSIONS,
    **slices.EXPRESSIONS,
    **slice_counts.EXPRESSIONS,
    **objective_series.EXPRESSIONS,
}


def recorded_expressions(series: Iterable[Recorded], spec: Spec) -> dict[Recorded, str]:
    """The PromQL of the series, in their order; without those that the spec leaves empty."""
    found = {}
    by_spec = declared_by_spec(spec.objectives, spec.windows)
    for each in series:
        expression = by_spec.get(each, _EXPRESSIONS.get(each))
        if expression is not None:
            found[each] = expression if isinstance(expression, str) else expression(spec.parameters)
    return found
