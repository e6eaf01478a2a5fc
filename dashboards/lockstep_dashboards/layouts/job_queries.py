"""The PromQL of the job board: restricted to the chosen job, bounded in series."""

from lockstep_catalogue import Metric, Recorded, Series, training
from lockstep_catalogue.labels import ATTEMPT, CLUSTER, JOB_ID, KIND, NODE, RANK
from lockstep_catalogue.metric import Label
from lockstep_catalogue.promql import by, histogram_quantile, names, rate, select
from lockstep_catalogue.recorded import LATENESS, LATENESS_RATIO
from lockstep_dashboards.panel import Query
from lockstep_dashboards.selection import NUM_WORST, Selection
from lockstep_dashboards.variables import THIS_CLUSTER, THIS_JOB

_JOB = (CLUSTER, JOB_ID)
_THIS_JOB = (THIS_CLUSTER, THIS_JOB)
CHOSEN = Selection(_THIS_JOB, _JOB)


def _of(series: Series) -> str:
    return select(series, *_THIS_JOB)


def _rate(metric: Metric) -> str:
    return rate(metric, "$__rate_interval", *_THIS_JOB)


def _over_range(operator: str, series: Series) -> str:
    """The series over the whole range, so that a job that has ended still has a value."""
    return f"{operator}_over_time({_of(series)}[$__range])"


def as_is(series: Series, legend: str) -> Query:
    """The series itself."""
    return Query(expression=_of(series), legend=legend)


def aggregate(operator: str, series: Series, *labels: Label, legend: str) -> Query:
    """The series of the job's nodes or ranks, aggregated to the given labels."""
    return Query(expression=by(operator, _of(series), *_JOB, *labels), legend=legend)


def aggregate_rates(operator: str, metric: Metric, *labels: Label, legend: str) -> Query:
    """The rates of the job's nodes or ranks, aggregated to the given labels."""
    return Query(expression=by(operator, _rate(metric), *_JOB, *labels), legend=legend)


def counted(metric: Metric, *labels: Label, legend: str) -> Query:
    """How much a counter of the job's nodes grew between two points."""
    grown = CHOSEN.increase(metric, window="$__rate_interval")
    return Query(expression=by("sum", grown, *_JOB, *labels), legend=legend)


def age(metric: Metric) -> Query:
    """Seconds since the newest time that the series holds."""
    return Query(expression=f"time() - {by('max', _of(metric), *_JOB)}", legend="age")


def latency(quantile: float) -> Query:
    """A quantile of the steps of all ranks."""
    expression = histogram_quantile(
        quantile, training.STEP_SECONDS, "$__rate_interval", *_JOB, where=_THIS_JOB
    )
    return Query(expression=expression, legend=f"p{quantile * 100:g}")


def of_worst(series: Recorded, count: int, legend: str) -> Query:
    """The series of the worst ranks of the range."""
    return of_worst_ranks(_of(series), count, legend)


def of_worst_ranks(expression: str, count: int, legend: str) -> Query:
    """An expression by rank, for the worst ranks of the range."""
    # @ end() chooses them once: a topk at every point would add up to many more series.
    worst = f"topk({count}, avg_over_time({_of(LATENESS_RATIO)}[$__range] @ end()))"
    chosen = f"{expression} and on ({names(*_JOB, RANK)}) {worst}"
    return Query(expression=chosen, legend=legend)


def worst_ranks() -> Query:
    """A table row for each of the worst ranks and each node that it ran on."""
    places = by("group", _over_range("last", training.RANK_INFO), *_JOB, RANK, NODE)
    worst = f"topk({NUM_WORST}, {_over_range('avg', LATENESS)})"
    return Query(expression=f"{places} * on ({names(*_JOB, RANK)}) group_left () {worst}")


def _by_attempt(*labels: Label) -> str:
    return by("count", _over_range("last", training.RANK_INFO), *_JOB, ATTEMPT, *labels)


def num_attempts() -> Query:
    """Number of attempts within the range."""
    return Query(expression=by("count", _by_attempt(), *_JOB), legend="attempts")


def ranks_by_attempt(*labels: Label) -> Query:
    """Ranks of each attempt within the range, the largest attempts first."""
    return Query(expression=f"topk({NUM_WORST}, {_by_attempt(*labels)})")


def exposed_per_step() -> Query:
    """Seconds a step that a rank waits for collectives, by kind."""
    seconds = by("sum", _rate(training.COLLECTIVE_SECONDS), *_JOB, KIND)
    steps = by("sum", _rate(training.STEPS), *_JOB)
    expression = f"{seconds} / on ({names(*_JOB)}) group_left () {steps}"
    return Query(expression=expression, legend="{{kind}}")
