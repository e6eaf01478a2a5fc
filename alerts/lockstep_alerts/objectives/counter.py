"""An objective on a counter of the catalogue: which increments count, and which of them are good.

Increments are summed in five minutes once; every longer window is a sum of those. Five minutes are
evaluated every minute, so that each increment is in five of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from lockstep_alerts.reading.entry import Entry, SpecError, nearest
from lockstep_alerts.reading.model import Duration
from lockstep_catalogue import METRICS
from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.ledger import SLO_WINDOWS
from lockstep_catalogue.metric import Kind, Metric
from lockstep_catalogue.promql import LE, Matcher, by, eq, increase, one_of, select
from lockstep_catalogue.recorded import COUNTER_BAD, COUNTER_TOTAL, PERIOD_DAYS
from lockstep_catalogue.windows import ScrapeWindows

_SUM_SECONDS, _EVERY_SECONDS = 300, 60
_COUNTERS = {each.name: each for each in METRICS if each.kind is not Kind.GAUGE}


@dataclass(frozen=True, kw_only=True, slots=True)
class Counter:
    """What is counted.

    Attributes:
        all: matchers of the series whose increments are events.
        good: further matchers of those that are good.
        period: window over which the objective holds.
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
    counted = select(COUNTER_BAD if is_bad else COUNTER_TOTAL, matcher)
    times = _SUM_SECONDS // _EVERY_SECONDS
    return f"round(sum_over_time({counted}[{window}]) / {times})"


def read_counter(entry: Entry, retention: Duration) -> Counter:
    """The counter of an entry.

    Raises:
        SpecError: no counter or label of the catalogue, a value that the label cannot take, or a
            period that Prometheus does not keep.
    """
    metric = _metric(entry)
    period = entry.choice("period", *PERIOD_DAYS)
    if Duration(period).seconds > retention.seconds:
        fits = [name for name in PERIOD_DAYS if Duration(name).seconds <= retention.seconds]
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
