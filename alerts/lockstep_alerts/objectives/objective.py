"""One objective: the share of good events that a cluster promises over its period, and windows."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeVar

from lockstep_alerts.reading.entry import Entry, SpecError, choice, nearest, number, read_quantities
from lockstep_alerts.reading.model import Duration
from lockstep_alerts.rules.slices import BASELINE, BASELINE_SLOS
from lockstep_catalogue import METRICS, recorded
from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.ledger import EVENT_SLOS, GPU_SECOND_SLOS, SLICE_SLOS, SLO, SLO_WINDOWS
from lockstep_catalogue.metric import Kind, Metric
from lockstep_catalogue.promql import LE, Matcher, by, eq, increase, one_of, select
from lockstep_catalogue.recorded import PERIOD, SLICE_PERIOD
from lockstep_catalogue.windows import ScrapeWindows

SloWindow = Annotated[str, choice(*SLO_WINDOWS)]
"""A window for which the ledger counts."""
_BURN_RATE = number(0, 1000)
FEASIBLE_RATIO = 0.8
"""Share of the largest burn rate there can be, 1 over the budget, from which on none is reached:
four in five of all events would have to be bad."""


def feasible_burn_rate(bad_ratio: float) -> float:
    """The highest burn rate that a rule may ask for at this error budget."""
    return FEASIBLE_RATIO / bad_ratio


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """How many bad events in one window are too many.

    Attributes:
        recent: a shorter window that must hold a bad event too, so that the alert ends soon after
            the last one; None where that does not matter.
        sigmas: standard deviations above the mean; with the spare, a window passes by chance in
            1e-4 to 2e-3 of all times at 3 and 1.5, and in 2e-4 to 2e-2 at 2 and 1.
        spare: events above the mean in any case: one bad event is never enough.
        burn_rate: times as fast as the budget allows, at least; None where chance alone decides.
        cluster_size: bad events that one incident makes, on average: a node that dies under two
            jobs is one incident, as one under a single job. Chance and spare count incidents.
    """

    window: SloWindow
    recent: Annotated[str | None, choice(*SLO_WINDOWS)] = None
    sigmas: Annotated[float, number(0, 10)]
    spare: Annotated[float, number(0, 100)]
    burn_rate: Annotated[float | None, _BURN_RATE] = None
    cluster_size: Annotated[float, number(0, 100)] = 1

    def events(self, per_period: float, period: str = PERIOD) -> float:
        """Events that end in the window, where they come evenly."""
        return per_period * SLO_WINDOWS[self.window] / SLO_WINDOWS[period]

    def least_bad(self, bad_ratio: float, events: float) -> int:
        """The fewest bad events that are too many, where so many end in the window."""
        least = 0
        while True:
            # Where few end, the bad ones are among them.
            mean = bad_ratio * max(events, least)
            by_chance = mean + self.sigmas * math.sqrt(self.cluster_size * mean)
            too_many = max(by_chance + self.spares, (self.burn_rate or 0.0) * mean)
            if least > too_many:
                return least
            least = max(least + 1, math.floor(too_many) + 1)

    @property
    def spares(self) -> float:
        """Events above the mean in any case."""
        return self.spare * self.cluster_size


@dataclass(frozen=True, kw_only=True, slots=True)
class BurnLimit:
    """How fast the budget of GPU-seconds may burn, over a window and lately.

    Attributes:
        recent: a shorter window in which it burns as fast, so that the alert ends soon after.
    """

    window: SloWindow
    recent: SloWindow
    burn_rate: Annotated[float, _BURN_RATE]

    def bad_share(self, bad_ratio: float) -> float:
        """Share of bad GPU-seconds from which on it burns too fast."""
        return self.burn_rate * bad_ratio

    def budget_share(self) -> float:
        """Share of the budget of 28 days that is gone after the window at this rate."""
        return self.burn_rate * SLO_WINDOWS[self.window] / SLO_WINDOWS[PERIOD]


_AnyLimit = TypeVar("_AnyLimit", Limit, BurnLimit)


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectiveWindows:
    """Limits by events and GPU-seconds, for a Prometheus that keeps samples for ``retention``."""

    retention: Duration
    event_page: tuple[Limit, ...]
    event_ticket: tuple[Limit, ...]
    gpu_second_page: tuple[BurnLimit, ...]
    gpu_second_ticket: tuple[BurnLimit, ...]


def read_windows(entry: Entry) -> ObjectiveWindows:
    """The windows of a spec; SpecError for a wrong one, or one longer than what is kept."""
    entry.check_keys(("retention", "events", "gpu_seconds"), ())
    retention = entry.duration("retention")
    for window, purpose in ((SLICE_PERIOD, "slices"), (BASELINE, "baselines of jobs")):
        if Duration(window).seconds > retention.seconds:
            raise entry.refuse(
                "retention",
                f"{purpose} are counted over {window}; keep samples that long "
                f"(--storage.tsdb.retention.time={window} or more)",
            )
    events, seconds = entry.entry("events"), entry.entry("gpu_seconds")
    for each in (events, seconds):
        each.check_keys(("page", "ticket"), ())
    return ObjectiveWindows(
        retention=retention,
        event_page=tuple(_read_limit(Limit, each) for each in events.entries("page")),
        event_ticket=tuple(_read_limit(Limit, each) for each in events.entries("ticket")),
        gpu_second_page=tuple(_read_limit(BurnLimit, each) for each in seconds.entries("page")),
        gpu_second_ticket=tuple(_read_limit(BurnLimit, each) for each in seconds.entries("ticket")),
    )


def _read_limit(kind: type[_AnyLimit], entry: Entry) -> _AnyLimit:
    limit = read_quantities(kind, entry)
    if limit.recent is not None and SLO_WINDOWS[limit.recent] >= SLO_WINDOWS[limit.window]:
        raise entry.refuse("recent", f"must be shorter than the window, {limit.window}")
    return limit


_SUM_SECONDS, _EVERY_SECONDS = 300, 60
_COUNTERS = {each.name: each for each in METRICS if each.kind is not Kind.GAUGE}


@dataclass(frozen=True, kw_only=True, slots=True)
class Counter:
    """What is counted.

    Attributes:
        all: matchers of the series whose increments are events.
        good: further matchers of those that are good.
    """

    metric: Metric
    all: tuple[Matcher, ...]
    good: tuple[Matcher, ...]
    period: str

    def total_of_five_minutes(self, windows: ScrapeWindows) -> str:
        """PromQL of all events by cluster."""
        every = (*self.all, eq(LE, "+Inf")) if self.metric.kind is Kind.HISTOGRAM else self.all
        return by("sum", self._increase(windows, *every), CLUSTER)

    def bad_of_five_minutes(self, windows: ScrapeWindows) -> str:
        """PromQL of those that are not good."""
        good = by("sum", self._increase(windows, *self.all, *self.good), CLUSTER)
        total = self.total_of_five_minutes(windows)
        return f"clamp_min({total} - on ({CLUSTER.name}) ({good} or 0 * {total}), 0)"

    def _increase(self, windows: ScrapeWindows, *matchers: Matcher) -> str:
        return increase(self.metric, windows.cover(_SUM_SECONDS), *matchers)

    def windows(self) -> Iterator[str]:
        """Windows in which its events are counted."""
        return (w for w, seconds in SLO_WINDOWS.items() if seconds <= SLO_WINDOWS[self.period])


def sum_in_window(window: str, *, is_bad: bool, matcher: Matcher) -> str:
    """PromQL of the events in a window: whole ones, which an increase is not."""
    counted = select(recorded.COUNTER_BAD if is_bad else recorded.COUNTER_TOTAL, matcher)
    times = _SUM_SECONDS // _EVERY_SECONDS
    return f"round(sum_over_time({counted}[{window}]) / {times})"


def read_counter(entry: Entry, retention: Duration) -> Counter:
    """The counter of an entry; SpecError where no series can be it."""
    metric = _metric(entry)
    period = entry.choice("period", *recorded.PERIOD_DAYS)
    if Duration(period).seconds > retention.seconds:
        fits = [
            name for name in recorded.PERIOD_DAYS if Duration(name).seconds <= retention.seconds
        ]
        raise entry.refuse(
            "period",
            f"Prometheus keeps samples for {retention}; write {' or '.join(fits)}, or keep them "
            f"longer and raise retention",
        )
    return Counter(
        metric=metric,
        all=tuple(_matchers(entry, "all", metric)) if entry.has("all") else (),
        good=tuple(_matchers(entry, "good", metric)),
        period=period,
    )


def _metric(entry: Entry) -> Metric:
    name = entry.text("counter")
    if name not in _COUNTERS:
        guess = nearest(name, _COUNTERS) or "docs/metrics.md lists them"
        raise entry.refuse("counter", f"the catalogue has no such counter; {guess}".rstrip())
    return _COUNTERS[name]


def _matchers(entry: Entry, field: str, metric: Metric) -> Iterator[Matcher]:
    chosen = entry.entry(field)
    labels = {label.name: label for label in metric.exposed_labels}
    if metric.kind is Kind.HISTOGRAM:
        labels[LE.name] = LE
    for name in chosen.fields():
        if name not in labels:
            remedy = f"{nearest(name, labels)}it has {', '.join(labels)}"
            raise chosen.refuse(name, f"{metric.name} has no such label; {remedy}")
        values = chosen.texts(name)
        if name == LE.name and values[0] not in {f"{bound:g}" for bound in metric.buckets}:
            edges = ", ".join(f"{bound:g}" for bound in metric.buckets)
            raise chosen.refuse(name, f"is not an edge of a bucket; edges are {edges}")
        try:
            is_one = len(values) == 1
            yield eq(labels[name], values[0]) if is_one else one_of(labels[name], *values)
        except ValueError as error:
            raise SpecError(f"{chosen.location(name)}: {error}") from error


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
_JOB_OBJECTIVES = ("throughput", "step_latency", "gradient_sync", "bus_bandwidth")

AnyLimit = Limit | BurnLimit


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """What is promised of one kind of event.

    Attributes:
        bad: the events that are not good, in words: a plural noun and what qualifies it.
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
        return recorded.SLICE_PERIOD if self.slo in SLICE_SLOS else recorded.PERIOD

    @property
    def goals(self) -> dict[str, float]:
        """Share of good events by class of jobs; that of the whole cluster has no name."""
        return {"": self.good_ratio, **self.classes}


def read_objective(entry: Entry, windows: ObjectiveWindows) -> Objective:
    """The objective of an entry; SpecError where a field of it cannot be meant."""
    is_counter = entry.has("counter")
    slo = (
        entry.text("slo", _NAME)
        if is_counter
        else entry.choice("slo", *EVENT_SLOS, *GPU_SECOND_SLOS, *SLICE_SLOS)
    )
    required, optional = _keys(slo, is_counter=is_counter)
    entry.check_keys(_REQUIRED + required, _OPTIONAL + optional)
    if is_counter and slo in SLO.values:
        raise entry.refuse("slo", "is counted by the ledger or in slices; leave counter out")
    page_limits, ticket_limits = _limits(entry, slo, windows, is_counter=is_counter)
    objective = Objective(
        slo=slo,
        measure=entry.text("measure", _MEASURE),
        good_ratio=_ratio(entry, "good_ratio"),
        bad=entry.text("bad"),
        page=entry.optional_text("page", _ALERT),
        ticket=entry.optional_text("ticket", _ALERT),
        classes=_classes(entry) if entry.has("job_classes") else {},
        page_limits=page_limits,
        ticket_limits=ticket_limits,
        min_gpus=entry.number("min_gpus", 0, _MOST_GPUS) if entry.has("min_gpus") else 0.0,
        min_ratio=entry.number("min_ratio", 0, 1) if entry.has("min_ratio") else None,
        page_min_ratio=_page_min_ratio(entry) if entry.has("min_ratio") else None,
        counter=read_counter(entry, windows.retention) if is_counter else None,
    )
    if slo in EVENT_SLOS and objective.page is None and objective.ticket is None:
        raise entry.refuse("ticket", "name an alert that follows, as page or as ticket")
    _refuse_burn_rates_out_of_reach(entry, objective)
    return objective


def _keys(slo: str, *, is_counter: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if is_counter:
        return ("counter", "good", "period"), ("all", "burn_rates")
    if slo in SLICE_SLOS:
        needs_ratio, may_page = slo in BASELINE_SLOS, slo in _JOB_OBJECTIVES
        return ("min_ratio",) * needs_ratio, ("page_min_ratio",) * may_page
    return ("min_gpus",) * (slo in GPU_SECOND_SLOS), ("job_classes", "burn_rates")


def _limits(
    entry: Entry, slo: str, windows: ObjectiveWindows, *, is_counter: bool
) -> tuple[tuple[AnyLimit, ...], tuple[AnyLimit, ...]]:
    page: tuple[AnyLimit, ...] = windows.event_page
    ticket: tuple[AnyLimit, ...] = windows.event_ticket
    if slo in SLICE_SLOS:
        return (), ()
    if slo in GPU_SECOND_SLOS:
        page, ticket = windows.gpu_second_page, windows.gpu_second_ticket
    if is_counter:
        # One window each: a counter has no exact past that the others could hold.
        page, ticket = page[:1], ticket[:1]
    if not entry.has("burn_rates"):
        return page, ticket
    rates = entry.entry("burn_rates")
    with_rate = dict.fromkeys(each.window for each in (*page, *ticket) if each.burn_rate)
    rates.check_keys((), tuple(with_rate))

    def own(limit: AnyLimit) -> AnyLimit:
        if limit.burn_rate is None or not rates.has(limit.window):
            return limit
        return replace(limit, burn_rate=rates.number(limit.window, 0, _MOST_BURN))

    return tuple(map(own, page)), tuple(map(own, ticket))


def _classes(entry: Entry) -> dict[str, float]:
    classes = entry.entry("job_classes")
    for name in classes.fields():
        if not _CLASS.match(name):
            raise classes.refuse(name, "name a class of jobs as the launcher reports it")
    return {name: _ratio(classes, name) for name in classes.fields()}


def _ratio(entry: Entry, name: str) -> float:
    return entry.number(name, _LEAST_RATIO, _MOST_RATIO)


def _page_min_ratio(entry: Entry) -> float | None:
    if entry.has("page") != entry.has("page_min_ratio"):
        raise entry.refuse("page_min_ratio", "a page needs a ratio below which it comes, and back")
    most = entry.number("min_ratio", 0, 1)
    return entry.number("page_min_ratio", 0, most) if entry.has("page") else None


def _refuse_burn_rates_out_of_reach(entry: Entry, objective: Objective) -> None:
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
