"""Reads slos.yaml into alerts: what each means, when it fires and whom it wakes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep_alerts.alert import Alert
from lockstep_alerts.areas import Area, area_of
from lockstep_alerts.conditions import CONDITIONS
from lockstep_alerts.objectives.alerts import alerts_of_objectives
from lockstep_alerts.objectives.limits import ObjectiveWindows, read_windows
from lockstep_alerts.objectives.objective import Objective, read_objective
from lockstep_alerts.reading.entry import Entry, Fields, SpecError, load
from lockstep_alerts.reading.limits import Limits, Size, read_limits, read_size
from lockstep_alerts.reading.model import Duration
from lockstep_alerts.reading.overlay import EXTENDS, extended
from lockstep_alerts.reading.quantities import read_quantities
from lockstep_alerts.rules.parameters import Parameters
from lockstep_alerts.shipped import spec_path
from lockstep_catalogue.labels import JOB_ID
from lockstep_catalogue.windows import ScrapeWindows

SEVERITIES = ("critical", "warning", "info", "none")
_ALERT = re.compile(r"^[A-Z][A-Za-z0-9]+$")
_FAILURE = re.compile(r"^[FM][1-9][0-9]*$")
_REQUIRED = ("alert", "severity", "kind", "summary", "description")
_OPTIONAL = ("failure", "for", "keep_firing_for", "route")
_ROUTES = ("owners",)
_KEYS = ("scrape_interval", "size", "limits", "windows", "objectives", "alerts")


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """The alert spec at one scrape interval.

    Attributes:
        size: of the clusters that it is for.
        limits: those that belong to no single alert.
        objectives: what is promised, in the order of the file.
        condition_alerts: every alert that the file lists, in its order.
        objective_alerts: the alerts that follow from the objectives.
    """

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


def read_spec(path: Path, scrape_interval: Duration | None = None) -> Spec:
    """The spec of a file; a scrape interval that is given replaces the file's.

    Raises:
        SpecError: the file cannot be read, or a field of it is unknown, missing or wrong.
    """
    document = load(path)
    if isinstance(document, Fields) and EXTENDS in document:
        base = load(spec_path())
        assert isinstance(base, Fields)
        document, path = extended(path, document, base), spec_path()
    if not isinstance(document, Fields) or set(document) != set(_KEYS):
        raise SpecError(
            f"{path}: must hold the keys {', '.join(_KEYS[:-1])} and {_KEYS[-1]}, and nothing else"
        )
    windows = _windows(path, scrape_interval.text if scrape_interval else document[_KEYS[0]])
    entry = Entry(path, "", document, windows)
    entries = {key: tuple(entry.entries(key)) for key in ("objectives", "alerts")}
    of_objectives = read_windows(entry.entry("windows"))
    objectives = tuple(read_objective(each, of_objectives) for each in entries["objectives"])
    listed = tuple(map(_alert, entries["alerts"]))
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
    _refuse_alerts_twice(path, [each.name for each in spec.alerts])
    return spec


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


def _refuse_alerts_twice(path: Path, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"{path}: alert {name!r}: is listed twice; rename one")


def _alert(entry: Entry) -> Alert:
    kind = entry.choice("kind", *CONDITIONS)
    condition, area = CONDITIONS[kind], area_of(kind)
    return Alert(
        name=entry.text("alert", _ALERT),
        failure=entry.optional_text("failure", _FAILURE) or "",
        severity=entry.choice("severity", *SEVERITIES),
        area=area,
        condition=read_quantities(condition, entry, _REQUIRED, _OPTIONAL),
        pending=entry.optional_duration("for"),
        keep_firing=entry.optional_duration("keep_firing_for"),
        summary=entry.text("summary"),
        description=entry.text("description"),
        is_of_job=f"$labels.{JOB_ID.name}" in entry.text("summary"),
        route=entry.choice("route", *_ROUTES) if entry.has("route") else "",
    )
