"""PromQL over what a board's variables choose: every query restricted to it, bounded in series."""

from dataclasses import dataclass

from lockstep_catalogue import Label, Metric, Series
from lockstep_catalogue.promql import Matcher, by, increase, names, rate, select
from lockstep_dashboards.panel import Query

NUM_WORST = 10
"""Series of a graph of the worst, and rows of a table of them."""
MOST_ROWS = 50


@dataclass(frozen=True, slots=True)
class Selection:
    """What the variables choose.

    Attributes:
        matchers: of every selector, for the labels that its series has.
        labels: kept by every aggregation.
    """

    matchers: tuple[Matcher, ...]
    labels: tuple[Label, ...]

    def of(self, series: Series, *more: Matcher) -> str:
        """A selector."""
        return select(series, *self._matching(series), *more)

    def rate(self, metric: Metric, *more: Matcher) -> str:
        """The rate of a counter, or of a histogram's buckets."""
        return rate(metric, "$__rate_interval", *self._matching(metric), *more)

    def increase(self, metric: Metric, *more: Matcher, window: str = "$__range") -> str:
        """How much a counter grows over a window, by default over the range."""
        return increase(metric, window, *self._matching(metric), *more)

    def over_range(self, operator: str, series: Series, *more: Matcher) -> str:
        """A series over the range, so that what has ended still has a value."""
        return f"{operator}_over_time({self.of(series, *more)}[$__range])"

    def by(self, operator: str, expression: str, *labels: Label) -> str:
        """An aggregation that keeps the labels of the selection and others."""
        return by(operator, expression, *self.labels, *labels)

    def gauge(self, operator: str, series: Series, *labels: Label, legend: str = "") -> Query:
        """A gauge, aggregated."""
        return Query(
            expression=self.by(operator, self.of(series), *labels),
            legend=legend or _legend(labels),
        )

    def rates(self, operator: str, metric: Metric, *labels: Label, legend: str = "") -> Query:
        """The rates of a counter, aggregated."""
        return Query(
            expression=self.by(operator, self.rate(metric), *labels),
            legend=legend or _legend(labels),
        )

    def grown(self, metric: Metric, *labels: Label, legend: str = "") -> Query:
        """How much a counter grows over the range, summed."""
        return Query(
            expression=self.by("sum", self.increase(metric), *labels),
            legend=legend or _legend(labels),
        )

    def age(self, series: Series, *labels: Label, legend: str = "age") -> Query:
        """Seconds since the newest time that the series holds."""
        newest = self.by("max", self.of(series), *labels)
        return Query(expression=f"time() - {newest}", legend=legend)

    def quantile(self, quantile: float, metric: Metric, *labels: Label, legend: str = "") -> Query:
        """A quantile of a histogram."""
        buckets = by("sum", self.rate(metric), *self.labels, *labels, _LE)
        return Query(
            expression=f"histogram_quantile({quantile}, {buckets})",
            legend=legend or f"p{quantile * 100:g}",
        )

    def _matching(self, series: Series) -> tuple[Matcher, ...]:
        return tuple(each for each in self.matchers if each.label in series.exposed_labels)


_LE = Label(name="le", help="upper bound of a bucket")


def _legend(labels: tuple[Label, ...]) -> str:
    return " ".join(f"{{{{{label.name}}}}}" for label in labels)


def largest(expression: str, count: int = NUM_WORST) -> Query:
    """The largest at the end of the range, for a table."""
    return Query(expression=f"topk({count}, {expression})")


def above_zero(expression: str, count: int = MOST_ROWS) -> Query:
    """What is not zero, the largest first, for a table of troubles."""
    return Query(expression=f"topk({count}, {expression} > 0)")


def of_largest(
    expression: str, ranking: str, *labels: Label, count: int = NUM_WORST, legend: str = ""
) -> Query:
    """The series of an expression that are the largest by another, chosen once for the range.

    A topk at every point would add up to many more series; ``ranking`` ends with ``@ end()``.
    """
    chosen = f"topk({count}, {ranking})"
    return Query(
        expression=f"({expression}) and on ({names(*labels)}) {chosen}",
        legend=legend or _legend(labels),
    )


def one_value(expression: str, legend: str) -> Query:
    """An expression as it is."""
    return Query(expression=expression, legend=legend)
