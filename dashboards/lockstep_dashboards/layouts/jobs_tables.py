"""What all jobs do now: a table of the running ones, and their states over time."""

from lockstep_catalogue import Series, Unit, job_watch, ledger, recorded, training
from lockstep_catalogue.labels import CLUSTER, JOB_CLASS, JOB_ID, PROJECT, QUEUE, STATE
from lockstep_catalogue.promql import by, eq, names, one_of
from lockstep_catalogue.recorded_goodput import GOODPUT_RATIO
from lockstep_dashboards.colors import BAD, GOOD, NEUTRAL, WARNING
from lockstep_dashboards.panel import Panel, Query, ValueText
from lockstep_dashboards.selection import MOST_ROWS, Selection
from lockstep_dashboards.series_panels import column, state_timeline, table
from lockstep_dashboards.variables import THIS_CLUSTER

_JOB = (CLUSTER, JOB_ID)
_ON_JOB = f"on ({names(*_JOB)})"
_CHOSEN = Selection((THIS_CLUSTER,), _JOB)
_OF_CLASS = one_of(JOB_CLASS, "$class")
_MOST_IN_TIMELINE = 25
_STATES = (
    ValueText(value=0, text="not training", color=NEUTRAL),
    ValueText(value=1, text="training", color=GOOD),
    ValueText(value=2, text="stands", color=WARNING),
    ValueText(value=3, text="hangs", color=BAD),
)
_INFO = by("group", _CHOSEN.of(training.JOB_INFO, _OF_CLASS), *_JOB, PROJECT, QUEUE, JOB_CLASS)
_NUM_RANKS = _CHOSEN.by("sum", _CHOSEN.of(training.RANKS))
_LARGEST = f"topk({MOST_ROWS}, {_NUM_RANKS} * {_ON_JOB} group_right () {_INFO})"
"""Ranks of the largest jobs of the chosen class, with their owners."""


def _cell(series: Series, expression: str, heading: str, unit: Unit | None = None) -> Query:
    # The same jobs in each column, or rows without an owner would appear.
    query = Query(expression=f"({expression}) and {_ON_JOB} {_LARGEST}")
    return column(series, query, heading, unit)


def _age(series: Series) -> str:
    return f"time() - {_CHOSEN.by('max', _CHOSEN.of(series))}"


def jobs_table() -> Panel:
    """One row a running job, the largest ones."""
    return table(
        training.JOB_INFO,
        column(training.RANKS, Query(expression=_LARGEST), "ranks"),
        _cell(training.STEP, _CHOSEN.by("max", _CHOSEN.of(training.STEP)), "step"),
        _cell(training.LAST_PROGRESS, _age(training.LAST_PROGRESS), "silent for", Unit.SECONDS),
        _cell(recorded.STEP_MEAN, _CHOSEN.of(recorded.STEP_MEAN), "step time"),
        _cell(GOODPUT_RATIO, _CHOSEN.of(GOODPUT_RATIO), "goodput"),
        _cell(
            recorded.LATENESS_RATIO,
            _CHOSEN.by("max", _CHOSEN.of(recorded.LATENESS_RATIO)),
            "worst lateness",
        ),
        _cell(training.LAST_CHECKPOINT, _age(training.LAST_CHECKPOINT), "checkpoint", Unit.SECONDS),
        title="Running jobs",
        note="The largest jobs; a click on a job opens its board.",
        good="silent for less than a few steps, goodput above 80 %, worst lateness under 8 %, a"
        " checkpoint younger than its interval.",
        otherwise="open the job; its board names the rank, node and phase.",
        columns=(JOB_ID, PROJECT, QUEUE, JOB_CLASS),
        width=24,
        height=9,
    )


def deadlines_table() -> Panel:
    """Which jobs will be late at their present pace."""
    left = (
        f"{_CHOSEN.by('max', _CHOSEN.of(ledger.JOB_TOKENS))}"
        f" - {_CHOSEN.by('sum', _CHOSEN.over_range('last', training.TOKENS))}"
    )
    deadline = f"{_CHOSEN.by('max', _CHOSEN.of(ledger.JOB_DEADLINE))} - time()"
    needed = f"({left}) / {_CHOSEN.of(recorded.TOKENS_RATE)}"
    return table(
        ledger.JOB_DEADLINE,
        column(
            ledger.JOB_DEADLINE,
            Query(expression=f"bottomk({MOST_ROWS}, ({deadline}) - ({needed}))"),
            "to spare",
            Unit.SECONDS,
        ),
        column(
            ledger.JOB_DEADLINE,
            Query(expression=f"bottomk({MOST_ROWS}, {deadline})"),
            "deadline in",
            Unit.SECONDS,
        ),
        column(
            recorded.TOKENS_RATE,
            Query(expression=f"topk({MOST_ROWS}, {needed})"),
            "needed at this pace",
            Unit.SECONDS,
        ),
        title="Jobs and their deadlines",
        unit=Unit.SECONDS,
        good="time to spare on every row.",
        otherwise="below 0 the job will be late: its board says what slows it down.",
        columns=(JOB_ID,),
        width=12,
        may_be_empty="jobs that declare no deadline and tokens have none",
    )


def job_states() -> Panel:
    """What each job did over the range, the worst state of its nodes."""
    hangs = f"({_CHOSEN.by('sum', _CHOSEN.of(job_watch.HUNG_RANKS))} > 0) * 0 + 3"
    stands = f"{_CHOSEN.of(recorded.STANDING)} * 0 + 2"
    training_ranks = _CHOSEN.by("sum", _CHOSEN.of(training.RANKS, eq(STATE, "training")))
    expression = f"{hangs} or {stands} or (({training_ranks} > 0) * 0 + 1) or ({_NUM_RANKS}) * 0"
    last = _CHOSEN.by("sum", f"{_CHOSEN.of(training.RANKS)} @ end()")
    info = f"{_CHOSEN.of(training.JOB_INFO, _OF_CLASS)} @ end()"
    largest = f"topk({_MOST_IN_TIMELINE}, {last} and {_ON_JOB} {info})"
    return state_timeline(
        training.RANKS,
        Query(expression=f"({expression}) and {_ON_JOB} {largest}", legend="{{job_id}}"),
        title="States of jobs",
        good="one blue band a job.",
        otherwise="orange stands without progress, vermilion hangs: the page names the rank that"
        " is missing.",
        texts=_STATES,
        unit="short",
    )
