"""One objective: the share of good events that a cluster promises over its period."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lockstep_alerts.objectives.counter import Counter, read_counter
from lockstep_alerts.objectives.limits import BurnLimit, Limit, feasible_burn_rate
from lockstep_alerts.objectives.windows import ObjectiveWindows
from lockstep_alerts.reading.entry import Entry
from lockstep_alerts.rules.slices import OF_BASELINE
from lockstep_catalogue.ledger import EVENT_SLOS, GPU_SECOND_SLOS, SLICE_SLOS, SLO
from lockstep_catalogue.recorded import PERIOD, SLICE_PERIOD

_ALERT = re.compile(r"^[A-Z][A-Za-z0-9]+$")
_MEASURE = re.compile(r"^M[1-9][0-9]*$")
_NAME = re.compile(r"^[a-z][a-z0-9_]*$")
_CLASS = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
_REQUIRED = ("slo", "measure", "good_ratio", "bad")
_OPTIONAL = ("page", "ticket")
# Below a half the budget is the rule and not an exception; above 0.999 one bad event in a month of
# a thousand is already too many, and no window shorter than the month can tell.
_LEAST_RATIO, _MOST_RATIO = 0.5, 0.999
_MOST_BURN, _MOST_GPUS = 1000.0, 1e6

# Of these a bad quarter of an hour is a ticket; what the others measure has alerts of its own, or
# is slow: their budgets are watched.
_OF_ONE_JOB = ("throughput", "step_latency", "gradient_sync", "bus_bandwidth")

AnyLimit = Limit | BurnLimit


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """What is promised of one kind of event.

    Attributes:
        slo: name of the events, as the catalogue lists them.
        measure: what it answers, such as ``M1``.
        good_ratio: share of good events over the period.
        bad: the events that are not good, in words: a plural noun and what qualifies it.
        page: name of the alert that wakes somebody; None for none.
        ticket: name of the alert that makes a ticket; None for none.
        classes: share of good events of classes of jobs that are alerted on by themselves.
        page_limits, ticket_limits: windows of events or of GPU-seconds; slices have none.
        min_gpus: GPUs that were allocated on average, below which nothing is said.
        counter: that is counted by rules; None where the ledger or slices are.
        min_ratio, page_min_ratio: how good a slice must be against the job's best hour.
    """

    slo: str
    measure: str
    good_ratio: float
    bad: str
    page: str | None
    ticket: str | None
    classes: Mapping[str, float] = field(default_factory=dict)
    page_limits: tuple[AnyLimit, ...] = ()
    ticket_limits: tuple[AnyLimit, ...] = ()
    min_gpus: float = 0.0
    min_ratio: float | None = None
    counter: Counter | None = None
    page_min_ratio: float | None = None

    @property
    def bad_ratio(self) -> float:
        """The error budget: share of bad events that the objective allows."""
        return 1 - self.good_ratio

    @property
    def period(self) -> str:
        """Window over which it holds."""
        if self.counter is not None:
            return self.counter.period
        return SLICE_PERIOD if self.slo in SLICE_SLOS else PERIOD

    @property
    def goals(self) -> dict[str, float]:
        """Share of good events by class of jobs; that of the whole cluster has no name."""
        return {"": self.good_ratio, **self.classes}


def read_objective(entry: Entry, windows: ObjectiveWindows) -> Objective:
    """The objective of an entry.

    Raises:
        SpecError: a field is unknown, missing or outside of its bounds, no alert of events is
            named, or a burn rate cannot be reached.
    """
    if entry.has("counter"):
        return _read_counter_objective(entry, windows)
    slo = entry.choice("slo", *EVENT_SLOS, *GPU_SECOND_SLOS, *SLICE_SLOS)
    if slo in SLICE_SLOS:
        return _read_slice_objective(entry, slo)
    if slo in GPU_SECOND_SLOS:
        return _read_gpu_second_objective(entry, slo, windows)
    return _read_event_objective(entry, slo, windows)


def _common(entry: Entry, slo: str, *, has_classes: bool) -> Objective:
    objective = Objective(
        slo=slo,
        measure=entry.text("measure", _MEASURE),
        good_ratio=_ratio(entry, "good_ratio"),
        bad=entry.text("bad"),
        page=entry.optional_text("page", _ALERT),
        ticket=entry.optional_text("ticket", _ALERT),
    )
    if not has_classes or not entry.has("job_classes"):
        return objective
    classes = entry.entry("job_classes")
    for name in classes.fields():
        if not _CLASS.match(name):
            raise classes.refuse(name, "name a class of jobs as the launcher reports it")
    return replace(objective, classes={name: _ratio(classes, name) for name in classes.fields()})


def _ratio(entry: Entry, name: str) -> float:
    return entry.number(name, _LEAST_RATIO, _MOST_RATIO)


def _read_event_objective(entry: Entry, slo: str, windows: ObjectiveWindows) -> Objective:
    entry.check_keys(_REQUIRED, (*_OPTIONAL, "job_classes", "burn_rates"))
    objective = _common(entry, slo, has_classes=True)
    if objective.page is None and objective.ticket is None:
        raise entry.refuse("ticket", "name an alert that follows, as page or as ticket")
    own = _burn_rates(entry, (*windows.event_page, *windows.event_ticket))
    return _feasible(
        entry,
        replace(
            objective,
            page_limits=tuple(_replace_burn_rate(limit, own) for limit in windows.event_page),
            ticket_limits=tuple(_replace_burn_rate(limit, own) for limit in windows.event_ticket),
        ),
    )


def _read_counter_objective(entry: Entry, windows: ObjectiveWindows) -> Objective:
    """An objective on any counter of the catalogue, under a name of the spec's own."""
    entry.check_keys((*_REQUIRED, "counter", "good", "period"), (*_OPTIONAL, "all", "burn_rates"))
    slo = entry.text("slo", _NAME)
    if slo in SLO.values:
        raise entry.refuse("slo", "is counted by the ledger or in slices; leave counter out")
    objective = _common(entry, slo, has_classes=False)
    own = _burn_rates(entry, windows.event_page[:1])
    # One window each: a counter has no exact past that the others could hold.
    return _feasible(
        entry,
        replace(
            objective,
            counter=read_counter(entry, windows.retention),
            page_limits=tuple(_replace_burn_rate(limit, own) for limit in windows.event_page[:1]),
            ticket_limits=windows.event_ticket[:1],
        ),
    )


def _read_gpu_second_objective(entry: Entry, slo: str, windows: ObjectiveWindows) -> Objective:
    entry.check_keys((*_REQUIRED, "min_gpus"), (*_OPTIONAL, "job_classes", "burn_rates"))
    own = _burn_rates(entry, (*windows.gpu_second_page, *windows.gpu_second_ticket))
    objective = replace(
        _common(entry, slo, has_classes=True),
        page_limits=tuple(_replace_burn_rate(limit, own) for limit in windows.gpu_second_page),
        ticket_limits=tuple(_replace_burn_rate(limit, own) for limit in windows.gpu_second_ticket),
        min_gpus=entry.number("min_gpus", 0, _MOST_GPUS),
    )
    return _feasible(entry, objective)


def _read_slice_objective(entry: Entry, slo: str) -> Objective:
    limits = ("min_ratio",) if slo in OF_BASELINE else ()
    optional = (*_OPTIONAL, "page_min_ratio") if slo in _OF_ONE_JOB else ()
    entry.check_keys((*_REQUIRED, *limits), optional)
    objective = _common(entry, slo, has_classes=False)
    if not limits:
        return objective
    min_ratio = entry.number("min_ratio", 0, 1)
    if (objective.page is None) != (not entry.has("page_min_ratio")):
        raise entry.refuse("page_min_ratio", "a page needs a ratio below which it comes, and back")
    page_min = entry.number("page_min_ratio", 0, min_ratio) if objective.page else None
    return replace(objective, min_ratio=min_ratio, page_min_ratio=page_min)


def _burn_rates(entry: Entry, limits: tuple[AnyLimit, ...]) -> dict[str, float]:
    if not entry.has("burn_rates"):
        return {}
    rates = entry.entry("burn_rates")
    rates.check_keys((), tuple(dict.fromkeys(each.window for each in limits if each.burn_rate)))
    return {window: rates.number(window, 0, _MOST_BURN) for window in rates.fields()}


def _replace_burn_rate(limit: AnyLimit, own: Mapping[str, float]) -> AnyLimit:
    has_rate = limit.burn_rate is not None
    return (
        replace(limit, burn_rate=own[limit.window]) if has_rate and limit.window in own else limit
    )


def _feasible(entry: Entry, objective: Objective) -> Objective:
    """The objective, unless one of its burn rates can hardly be reached."""
    used = (*(objective.page_limits if objective.page else ()),
            *(objective.ticket_limits if objective.ticket else ()))  # fmt: skip
    for name, good_ratio in objective.goals.items():
        most = feasible_burn_rate(1 - good_ratio)
        for limit in used:
            if (limit.burn_rate or 0.0) <= most:
                continue
            of_class = f" of class {name}" if name else ""
            field_name = "burn_rates" if entry.has("burn_rates") else "good_ratio"
            raise entry.refuse(
                field_name,
                f"at {good_ratio:g}{of_class} a budget burns at most {1 / (1 - good_ratio):.3g} "
                f"times as fast as allowed, and {limit.burn_rate:g} times in {limit.window} would "
                f"hardly ever be reached; write burn_rates: {{{limit.window}: {most:.2g}}} or less",
            )
    return objective
