"""Reads slos.yaml into alerts: what each means, when it fires and whom it wakes."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep_alerts.alert import OBJECTIVES, SLICES, TELEMETRY, Alert, Area, area_of
from lockstep_alerts.conditions import CONDITIONS
from lockstep_alerts.conditions.condition import Condition, Sign, Signs
from lockstep_alerts.objectives.conditions import BudgetSpent, Burn, GpuSecondBurn, SliceWorse
from lockstep_alerts.objectives.objective import (
    BurnLimit,
    Limit,
    Objective,
    ObjectiveWindows,
    read_objective,
    read_windows,
)
from lockstep_alerts.reading.entry import Entry, Fields, SpecError, load, read_quantities
from lockstep_alerts.reading.limits import Limits, Size, read_limits, read_size
from lockstep_alerts.reading.model import Duration
from lockstep_alerts.reading.overlay import EXTENDS, SECTIONS, extended
from lockstep_alerts.rules.parameters import Parameters
from lockstep_alerts.shipped import spec_path
from lockstep_catalogue.foreign import ALERT_CAUSE
from lockstep_catalogue.labels import JOB_ID
from lockstep_catalogue.recorded import OBJECTIVE
from lockstep_catalogue.windows import ScrapeWindows

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
        yield _objective_alert(of_name, name, severity)
    if objectives:
        yield _budget(tuple(objectives))


def _objective_alert(objectives: Sequence[Objective], alert: str, severity: str) -> Alert:
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


SEVERITIES = ("critical", "warning", "info", "none")
_ALERT = re.compile(r"^[A-Z][A-Za-z0-9]+$")
_FAILURE = re.compile(r"^[FM][1-9][0-9]*$")
_REQUIRED = ("alert", "severity", "summary", "description")
_OPTIONAL = ("failure", "for", "keep_firing_for", "route")
_SIGN = re.compile(r"^[a-z][a-z0-9_]*$")
_ROUTES = ("owners",)
_KEYS = ("scrape_interval", "size", "limits", "windows", "objectives", "alerts")


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """The alert spec at one scrape interval, its alerts in the order of the file."""

    windows: ScrapeWindows
    size: Size
    limits: Limits
    objective_windows: ObjectiveWindows
    objectives: tuple[Objective, ...]
    condition_alerts: tuple[Alert, ...]
    objective_alerts: tuple[Alert, ...]

    @property
    def parameters(self) -> Parameters:
        """What the PromQL of recorded series depends on."""
        return Parameters(windows=self.windows, limits=self.limits)

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """Every alert."""
        return self.condition_alerts + self.objective_alerts

    def alerts_of(self, area: Area) -> tuple[Alert, ...]:
        """The alerts of one rule file."""
        return tuple(alert for alert in self.alerts if alert.area is area)


def read_spec(
    path: Path, scrape_interval: Duration | None = None, deployment: Path | None = None
) -> Spec:
    """The spec of a file; a scrape interval that is given replaces the file's.

    What a deployment file has of limits, size, objectives and alerts replaces the spec's. Raises
    SpecError where a field is unknown, missing or wrong.
    """
    path, document = _document(path, deployment)
    if not isinstance(document, Fields) or set(document) != set(_KEYS):
        raise SpecError(
            f"{path}: must hold the keys {', '.join(_KEYS[:-1])} and {_KEYS[-1]}, and nothing else"
        )
    windows = _windows(path, scrape_interval.text if scrape_interval else document[_KEYS[0]])
    entry = Entry(path, "", document, windows)
    entries = {key: tuple(entry.entries(key)) for key in ("objectives", "alerts")}
    of_objectives = read_windows(entry.entry("windows"))
    objectives = tuple(read_objective(each, of_objectives) for each in entries["objectives"])
    listed = tuple(_alert(each, number) for number, each in enumerate(entries["alerts"], 1))
    spec = Spec(
        windows=windows,
        size=read_size(entry.entry("size")),
        limits=read_limits(entry.entry("limits")),
        objective_windows=of_objectives,
        objectives=objectives,
        condition_alerts=listed,
        objective_alerts=tuple(alerts_of_objectives(objectives)),
    )
    _refuse_unknown_classes(entries["objectives"], spec.limits)
    _refuse_doubles(entries["objectives"], "slo", [each.slo for each in objectives])
    _refuse_doubles(entries["alerts"], "alert", [each.name for each in listed])
    _refuse_alerts_twice(path, spec.alerts)
    _refuse_floors(entry, spec)
    return spec


def _document(path: Path, deployment: Path | None) -> tuple[Path, object]:
    document = load(path)
    if isinstance(document, Fields) and EXTENDS in document:
        base = load(spec_path())
        assert isinstance(base, Fields)
        document, path = extended(path, document, base), spec_path()
    if deployment and isinstance(own := load(deployment), Fields) and isinstance(document, Fields):
        document = extended(deployment, own, document, SECTIONS)
    return path, document


def _windows(path: Path, scrape_interval: object) -> ScrapeWindows:
    location = f"{path}: scrape_interval {scrape_interval!r}"
    if not isinstance(scrape_interval, str):
        raise SpecError(f"{location}: write a duration such as 15s")
    try:
        return ScrapeWindows(Duration(scrape_interval).seconds)
    except ValueError as error:
        raise SpecError(f"{location}: {error}") from error


def _refuse_doubles(entries: Sequence[Entry], field: str, names: list[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            first = entries[names.index(name)].location(field)
            raise entries[index].refuse(field, f"is listed twice, first in {first}; rename one")


def _refuse_unknown_classes(objectives: Sequence[Entry], limits: Limits) -> None:
    for objective in objectives:
        if objective.has("job_classes"):
            classes = objective.entry("job_classes")
            for name in classes.fields():
                limits.check_class(classes, name, name)


def _refuse_alerts_twice(path: Path, alerts: Sequence[Alert]) -> None:
    """An alert has one rule in each area at most: an objective may page by a listed alert."""
    rules = [(each.name, each.area) for each in alerts]
    for name, area in rules:
        if rules.count((name, area)) > 1:
            raise SpecError(f"{path}: alert {name!r}: is listed twice; rename one")


def _alert(entry: Entry, number: int) -> Alert:
    kinds, condition = _condition(entry)
    severity, area = entry.choice("severity", *SEVERITIES), area_of(kinds[0])
    return Alert(
        name=entry.text("alert", _ALERT),
        failure=entry.optional_text("failure", _FAILURE) or "",
        severity=severity,
        area=area,
        condition=condition,
        pending=entry.optional_duration("for"),
        keep_firing=entry.optional_duration("keep_firing_for"),
        summary=entry.text("summary"),
        description=entry.text("description"),
        is_of_job=f"$labels.{JOB_ID.name}" in entry.text("summary"),
        route=entry.choice("route", *_ROUTES) if entry.has("route") else "",
        weight=number if severity == "warning" and area is not TELEMETRY else 0,
    )


def _condition(entry: Entry) -> tuple[tuple[str, ...], Condition]:
    if not entry.has("signs"):
        kind = entry.choice("kind", *CONDITIONS)
        required = (*_REQUIRED, "kind")
        return (kind,), read_quantities(CONDITIONS[kind], entry, required, _OPTIONAL)
    entry.check_keys((*_REQUIRED, "signs"), _OPTIONAL)
    listed = tuple(entry.entries("signs"))
    signs = tuple(map(_sign, listed))
    names = [each.name for each in signs]
    for sign, name in zip(listed, names, strict=True):
        if names.count(name) > 1:
            raise sign.refuse("sign", f"{name} is there twice; rename one")
    return tuple(each.text("kind") for each in listed), Signs(signs=signs)


def _sign(entry: Entry) -> Sign:
    condition = CONDITIONS[entry.choice("kind", *CONDITIONS)]
    return Sign(
        name=entry.text("sign", _SIGN),
        condition=read_quantities(condition, entry, ("sign", "kind"), ("says",)),
        says=entry.text("says") if entry.has("says") else "",
    )


def _refuse_floors(entry: Entry, spec: Spec) -> None:
    ranks, limits = spec.size.ranks, entry.entry("limits")
    if spec.limits.page_gpus > ranks:
        raise limits.refuse("page_gpus", f"no job is so large at size.ranks {ranks:g}; write less")
    if limits.has("losses") and spec.limits.losses.cluster_gpus > ranks:
        remedy = f"is more than all size.ranks, {ranks:g}, can lose in an hour; write less"
        raise limits.entry("losses").refuse("cluster_gpus", remedy)
    for alert, condition in zip(entry.entries("alerts"), spec.condition_alerts, strict=True):
        for field, reason in condition.condition.impossible(ranks):
            raise alert.refuse(field, f"{condition.name}: {reason}")
