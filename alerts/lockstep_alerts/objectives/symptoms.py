"""The alerts that follow from objectives: a page, a ticket, and a ticket of spent budgets."""

from collections.abc import Iterator, Sequence

from lockstep_alerts.areas import OBJECTIVES
from lockstep_alerts.model import Duration
from lockstep_alerts.objectives.budget import BudgetSpent
from lockstep_alerts.objectives.burn import PAGE, TICKET, Burn, Limit
from lockstep_alerts.objectives.objective import Objective
from lockstep_alerts.symptom import Symptom

BUDGET_ALERT = "TrainSLOBudgetSpent"
_CLUSTER = "{{ $labels.cluster }}"
# The next bad event within it belongs to the same incident.
_KEEP_PAGE, _KEEP_TICKET = Duration("15m"), Duration("1h")


def symptoms_of(objectives: Sequence[Objective]) -> Iterator[Symptom]:
    """The alerts of all objectives, in their order, and last that of the budgets."""
    for objective in objectives:
        if objective.page is not None:
            yield _burn(objective, objective.page, "critical", PAGE, _KEEP_PAGE)
        if objective.ticket is not None:
            yield _burn(objective, objective.ticket, "warning", TICKET, _KEEP_TICKET)
    if objectives:
        yield _budget(tuple(objectives))


def _burn(
    objective: Objective, alert: str, severity: str, limits: tuple[Limit, ...], keep: Duration
) -> Symptom:
    return Symptom(
        alert=alert,
        failure=objective.measure,
        severity=severity,
        area=OBJECTIVES.name,
        condition=Burn(objective=objective, limits=limits),
        pending=None,
        keep_firing=keep,
        summary=f"Too many {objective.bad} in cluster {_CLUSTER}",
        description=(
            f"In the last {{{{ $labels.window }}}} there were {{{{ $value }}}} {objective.bad}. "
            f"The objective is {objective.good_ratio:.4%} good ones over 28 days, and chance does "
            "not explain this many."
        )
        .replace("0000%", "%")
        .replace(".%", "%"),
        is_of_job=False,
        every_seconds=OBJECTIVES.every_seconds,
    )


def _budget(objectives: tuple[Objective, ...]) -> Symptom:
    return Symptom(
        alert=BUDGET_ALERT,
        failure=objectives[0].measure,
        severity="warning",
        area=OBJECTIVES.name,
        condition=BudgetSpent(objectives=objectives),
        pending=Duration("1h"),
        keep_firing=_KEEP_TICKET,
        summary=f"Error budget of {{{{ $labels.slo }}}} is spent in cluster {_CLUSTER}",
        description=(
            "In the last 28 days there were {{ $value | humanize }} times as many bad events as "
            "the objective allows. Follow the policy of the budget: reliability first."
        ),
        is_of_job=False,
        every_seconds=OBJECTIVES.every_seconds,
    )
