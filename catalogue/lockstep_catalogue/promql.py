"""PromQL over catalogue objects: names and labels are checked when the text is built."""

from dataclasses import dataclass

from lockstep_catalogue.metric import Foreign, Kind, Label, Metric, Series

LE = Label(name="le", help="upper bound of a bucket")


@dataclass(frozen=True, slots=True)
class Matcher:
    """One label matcher of a selector."""

    label: Label
    operator: str
    value: str


def eq(label: Label, value: str) -> Matcher:
    """``label="value"``; in a closed set a value that is not declared is a ValueError."""
    _check_values(label, value)
    return Matcher(label, "=", value)


def has(label: Label) -> Matcher:
    """``label!=""``: series that carry the label."""
    return Matcher(label, "!=", "")


def one_of(label: Label, *values: str) -> Matcher:
    """``label=~"a|b"``, of one value ``label="a"``; values as for ``eq``."""
    _check_values(label, *values)
    return Matcher(label, "=" if _is_literal(*values) else "=~", "|".join(values))


def none_of(label: Label, *values: str) -> Matcher:
    """``label!~"a|b"``; values as for ``eq``."""
    _check_values(label, *values)
    return Matcher(label, "!=" if _is_literal(*values) else "!~", "|".join(values))


def _is_literal(*values: str) -> bool:
    """Whether they are one value that no pattern is needed for: an equality is cheaper."""
    return len(values) == 1 and not set(values[0]) & set(".*+?()[]{}|^$\\")


def _check_values(label: Label, *values: str) -> None:
    for value in values:
        if label.values and value not in label.values:
            raise ValueError(f"{label.name}={value!r} is none of {', '.join(label.values)}")


def select(series: Series, *matchers: Matcher) -> str:
    """An instant selector, of a histogram its buckets; ValueError for a label that it lacks."""
    bucketed = isinstance(series, Metric) and series.kind is Kind.HISTOGRAM
    for matcher in matchers:
        if matcher.label not in series.exposed_labels and not (bucketed and matcher.label == LE):
            raise ValueError(f"{series.name} has no label {matcher.label.name}")
    name = f"{series.name}_bucket" if bucketed else series.name
    inside = ", ".join(f'{m.label.name}{m.operator}"{m.value}"' for m in matchers)
    return f"{name}{{{inside}}}" if inside else name


def rate(metric: Metric | Foreign, window: str, *matchers: Matcher) -> str:
    """``rate(metric[window])``, for counters and histograms only."""
    return f"rate({_counted(metric, *matchers)}[{window}])"


def increase(metric: Metric | Foreign, window: str, *matchers: Matcher) -> str:
    """``increase(metric[window])``, for counters and histograms only."""
    return f"increase({_counted(metric, *matchers)}[{window}])"


def _counted(metric: Metric | Foreign, *matchers: Matcher) -> str:
    if metric.kind is Kind.GAUGE:
        raise ValueError(f"{metric.name} is a gauge; rate and increase need a counter")
    return select(metric, *matchers)


def rate_of_sum(metric: Metric, window: str, *matchers: Matcher) -> str:
    """``rate`` of the sum of a histogram's values."""
    return f"rate({_part(metric, '_sum', *matchers)}[{window}])"


def rate_of_count(metric: Metric, window: str, *matchers: Matcher) -> str:
    """``rate`` of the number of a histogram's values."""
    return f"rate({_part(metric, '_count', *matchers)}[{window}])"


def _part(metric: Metric, ending: str, *matchers: Matcher) -> str:
    if metric.kind is not Kind.HISTOGRAM:
        raise ValueError(f"{metric.name} is not a histogram; only a histogram has {ending}")
    buckets = f"{metric.name}_bucket"
    return select(metric, *matchers).replace(buckets, metric.name + ending, 1)


def names(*labels: Label) -> str:
    """The names of labels, for ``by``, ``on`` and ``group_left``."""
    return ", ".join(label.name for label in labels)


def by(operator: str, expression: str, *labels: Label) -> str:
    """``operator by (labels) (expression)``."""
    return f"{operator} by ({names(*labels)}) ({expression})"


def median_by(expression: str, *labels: Label) -> str:
    """The median over everything that shares the labels."""
    return f"quantile by ({names(*labels)}) (0.5, {expression})"


def lower_median_by(expression: str, *labels: Label) -> str:
    """The median over everything that shares the labels; of an even number the lower one."""
    median = median_by(expression, *labels)
    return by("max", f"{expression} <= on ({names(*labels)}) group_left () {median}", *labels)


def histogram_quantile(
    quantile: float, metric: Metric, window: str, *labels: Label, where: tuple[Matcher, ...] = ()
) -> str:
    """A quantile of a histogram's rate over a window, by labels, of the series that match."""
    inner = by("sum", rate(metric, window, *where), *labels, LE)
    return f"histogram_quantile({quantile}, {inner})"
