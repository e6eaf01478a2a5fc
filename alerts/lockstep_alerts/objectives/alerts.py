"""The alerts that follow from objectives: a page, a ticket, and a ticket of spent budgets."""

from collections.abc import Iterator, Sequence

from lockstep_alerts.alert import Alert
from lockstep_alerts.areas import OBJECTIVES, SLICES
from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.signs import Sign, Signs
from lockstep_alerts.objectives.conditions import BudgetSpent, Burn, GpuSecondBurn, SliceWorse
from lockstep_alerts.objectives.limits import BurnLimit, Limit
from lockstep_alerts.objectives.objective import Objective
from lockstep_alerts.reading.model import Duration
from lockstep_catalogue.foreign import ALERT_CAUSE
from lockstep_catalogue.recorded import OBJECTIVE

BUDGET_ALERT = "TrainSLOBudgetSpent"
_CLUSTER = "{{ $labels.cluster }}"
_CLASS_SUFFIX = "{{ with $labels.job_class }}, class {{ . }}{{ end }}"
# The next bad event within it belongs to the same incident.
_KEEP_PAGE, _KEEP_TICKET = Duration("15m"), Duration("1h")
# GPU-seconds come in reports of a minute: two of them, and for a ticket those of an hour.
_PAGE_AFTER, _TICKET_AFTER = Duration("2m"), Duration("1h")
_JOB_AFTER = Duration("15m")
"""What a job does for less passes by itself: an evaluation, a compilation, a burst of the store."""


def alerts_of_objectives(objectives: Sequence[Objective]) -> Iterator[Alert]:
    """The alerts of all objectives, those of one name as one, and last that of the budgets."""
    named: dict[tuple[str, str], list[Objective]] = {}
    for objective in objectives:
        if objective.page is not None:
            named.setdefault((objective.page, "critical"), []).append(objective)
        if objective.ticket is not None:
            named.setdefault((objective.ticket, "warning"), []).append(objective)
    for (name, severity), of_name in named.items():
        yield _alert(of_name, name, severity)
    if objectives:
        yield _budget(tuple(objectives))


def _alert(objectives: Sequence[Objective], alert: str, severity: str) -> Alert:
    first = objectives[0]
    is_of_job, is_page = first.min_ratio is not None, severity == "critical"
    signs, pending = [], None
    for objective in objectives:
        condition, after, text = _describe(objective, is_page=is_page)
        pending = max((pending, after), key=lambda each: each.seconds if each else 0)
        signs.append(Sign(name=objective.slo, condition=condition, says=text))
    bad = f"{{{{ $labels.{ALERT_CAUSE.name} }}}}"
    of_job = f"Job {{{{ $labels.job_id }}}} is worse than in its best hour by {bad}"
    of_cluster = f"Objective {bad} is missed in cluster {_CLUSTER}{_CLASS_SUFFIX}"
    if is_page:
        of_cluster = f"Jobs of cluster {_CLUSTER}{_CLASS_SUFFIX} lose time to {bad}"
    return Alert(
        name=alert,
        failure=first.measure,
        severity=severity,
        area=SLICES if is_of_job else OBJECTIVES,
        condition=Signs(signs=tuple(signs)),
        pending=pending,
        keep_firing=_KEEP_PAGE if is_page or is_of_job else _KEEP_TICKET,
        summary=of_job if is_of_job else of_cluster,
        description="",
        is_of_job=is_of_job,
    )


def _describe(objective: Objective, *, is_page: bool) -> tuple[Condition, Duration | None, str]:
    """What fires, how long it must hold, and the description of it."""
    limits = objective.page_limits if is_page else objective.ticket_limits
    if objective.min_ratio is not None:
        least = (objective.page_min_ratio if is_page else None) or objective.min_ratio
        text = (
            "For a quarter of an hour the job has been "
            "{{ $value | humanizePercentage }} as good as in its best hour of the last day "
            f"({objective.slo.replace('_', ' ')})."
        )
        return SliceWorse(objective=objective, min_ratio=least), _JOB_AFTER, text
    if burns := tuple(limit for limit in limits if isinstance(limit, BurnLimit)):
        text = (
            "In the last {{ $labels.window }} {{ $value | humanizePercentage }} of the allocated "
            f"GPU time were {objective.bad}. "
            f"The objective is {_promised()} good time over 28 days."
        )
        after = _PAGE_AFTER if is_page else _TICKET_AFTER
        return GpuSecondBurn(objective=objective, limits=burns), after, text
    events = tuple(limit for limit in limits if isinstance(limit, Limit))
    text = (
        f"In the last {{{{ $labels.window }}}} there were {{{{ $value }}}} {objective.bad}. "
        f"The objective is {_promised()} good ones over 28 days, and chance does "
        "not explain this many."
    )
    return Burn(objective=objective, limits=events), None, text


def _promised() -> str:
    """A template: the objective of the cluster or of the class that the alert is of."""
    labels = ", ".join(f"{name}='%s'" for name in ("cluster", "job_class", "slo"))
    values = "$labels.cluster $labels.job_class $labels.slo"
    query = f'printf "{OBJECTIVE.name}{{{labels}}}" {values} | query'
    return f"{{{{ with {query} }}}}{{{{ . | first | value | humanizePercentage }}}}{{{{ end }}}}"


def _budget(objectives: tuple[Objective, ...]) -> Alert:
    return Alert(
        name=BUDGET_ALERT,
        failure=objectives[0].measure,
        severity="warning",
        area=OBJECTIVES,
        condition=BudgetSpent(objectives=objectives),
        pending=Duration("1h"),
        keep_firing=_KEEP_TICKET,
        summary="Error budget of {{ $labels.slo }} is spent in cluster "
        f"{_CLUSTER}{_CLASS_SUFFIX}",
        description="In the period of the objective there were {{ $value | humanize }} times as "
        "many bad events as it allows. Follow the policy of the budget: reliability first.",
        is_of_job=False,
    )
