"""The row of the executive board about what was delivered, and what it cost."""

from lockstep_catalogue import Unit, ledger, training
from lockstep_catalogue.labels import (
    CLUSTER,
    GOODPUT,
    PROJECT,
    QUEUE,
)
from lockstep_catalogue.promql import by, eq, one_of
from lockstep_dashboards.colors import GOODPUT_COLORS
from lockstep_dashboards.panel import Query, Row
from lockstep_dashboards.selection import Selection, largest, one_value
from lockstep_dashboards.series_panels import bar_gauge, column, stat, table, time_series
from lockstep_dashboards.variables import (
    THESE_LEDGER_CLASSES,
    THESE_QUEUES,
    THIS_CLUSTER,
)

HOUR_SECONDS = 3600
_TOKENS = 1_000_000
_GROUP = (CLUSTER, QUEUE, PROJECT, ledger.JOB_CLASS)
ALL = Selection((THIS_CLUSTER, THESE_QUEUES, THESE_LEDGER_CLASSES), ())
_GROUPS = Selection(ALL.matchers, _GROUP)
_USEFUL = one_of(GOODPUT, "productive", "evaluation")
_INFRA = eq(ledger.FAILURE_CLASS, "infra")
_MOST_GROUPS = 20
NO_PRICE = "jobs that declare no price per GPU hour cost nothing here"
NO_INCIDENT = "a range without such an incident has none"
_GPU_SECONDS = f"sum ({ALL.increase(ledger.GPU_SECONDS)})"


def _useless_hours() -> Query:
    """GPU hours of each state that is no progress."""
    spent = by("sum", ALL.increase(ledger.GPU_SECONDS), GOODPUT)
    useful = by("sum", ALL.increase(ledger.GPU_SECONDS, _USEFUL), GOODPUT)
    return Query(
        expression=f"({spent} unless on (goodput) {useful}) / {HOUR_SECONDS}",
        legend="{{goodput}}",
    )


def _shares() -> Query:
    """Shares of the states in all GPU time: together they are 1."""
    spent = ALL.rate(ledger.GPU_SECONDS)
    every = f"on () group_left () (sum ({spent}) > 0)"
    return Query(expression=f"{by('sum', spent, GOODPUT)} / {every}", legend="{{goodput}}")


def _cost_per_million_tokens() -> Query:
    """Money of a project over the tokens that its jobs trained on, both over the range."""
    project = Selection((THIS_CLUSTER,), (CLUSTER, PROJECT))
    node_labels = "cluster, job_id, node"
    owner = f"max by ({node_labels}, project) ({project.over_range('last', training.JOB_INFO)})"
    tokens = f"sum by ({node_labels}) ({project.increase(training.TOKENS)})"
    per_project = project.by("sum", f"{tokens} * on ({node_labels}) group_left (project) {owner}")
    cost = project.by("sum", project.increase(ledger.COST))
    return largest(f"{cost} / ({per_project} / {_TOKENS} > 0)", _MOST_GROUPS)


DELIVERY = Row(
    title="Delivered",
    panels=(
        time_series(
            ledger.GPU_SECONDS,
            _shares(),
            title="GPU time by state",
            note="Shares of the allocated time; the stack is 100 %.",
            good="productive above 80 %, and no other state above 5 %.",
            otherwise="look at the widest other state; the bars beside it say how many GPU hours it"
            " costs, and the job board who it is.",
            unit=Unit.RATIO,
            stacked=True,
            colors=GOODPUT_COLORS,
            minimum=0,
            maximum=1,
            width=16,
        ),
        bar_gauge(
            ledger.GPU_SECONDS,
            _useless_hours(),
            title="GPU hours without progress, by cause",
            good="every bar under a twentieth of the GPU hours delivered.",
            otherwise="start with the longest bar: waits for stragglers and hangs are faults,"
            " idle time is scheduling, rework is checkpoints that are too rare.",
            unit=Unit.NONE,
            colors=GOODPUT_COLORS,
            width=8,
        ),
        table(
            ledger.COST,
            column(ledger.COST, _GROUPS.grown(ledger.COST), "cost", Unit.NONE),
            column(
                ledger.GPU_SECONDS,
                one_value(
                    f"{_GROUPS.by('sum', _GROUPS.increase(ledger.GPU_SECONDS))} / {HOUR_SECONDS}",
                    "",
                ),
                "GPU hours",
                Unit.NONE,
            ),
            column(
                ledger.JOBS_FINISHED,
                _GROUPS.grown(ledger.JOBS_FINISHED),
                "jobs finished",
                Unit.NONE,
            ),
            title="Cost by project and class",
            good="money goes where the plan put it.",
            otherwise="ask the project; `lockstep ledger review --week` lists its jobs.",
            columns=(PROJECT, ledger.JOB_CLASS, QUEUE),
            width=12,
            may_be_empty=NO_PRICE,
        ),
        table(
            ledger.COST,
            _cost_per_million_tokens(),
            title="Cost per million tokens",
            good="falling, or steady for one model.",
            otherwise="compare GPU time by state of the project's jobs before and after.",
            columns=(PROJECT,),
            width=6,
            may_be_empty=NO_PRICE,
        ),
        stat(
            ledger.JOBS_FINISHED,
            one_value(
                f"{_GPU_SECONDS} / {HOUR_SECONDS}"
                f" / (sum ({ALL.increase(ledger.JOBS_FINISHED, _INFRA)}) > 0)",
                "GPU hours",
            ),
            title="GPU hours between failures",
            note="Allocated GPU hours over jobs that failed by infrastructure.",
            good="rising; large clusters see one failure in some 10,000 to 50,000 GPU hours.",
            otherwise="`lockstep ledger review --week` names the nodes and parts that failed.",
            unit=Unit.NONE,
            width=6,
            height=8,
            may_be_empty=NO_INCIDENT,
        ),
    ),
)
