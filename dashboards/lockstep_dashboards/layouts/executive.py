"""The board of 28 days: what the cluster promised, what it delivered, and what it cost."""

from lockstep_catalogue import Label, Metric, Unit, ledger, training
from lockstep_catalogue.labels import (
    CLUSTER,
    GOODPUT,
    OUTCOME,
    PROJECT,
    QUEUE,
    RESTORE_OUTCOME,
)
from lockstep_catalogue.promql import LE, by, eq, one_of
from lockstep_dashboards.annotations import annotations
from lockstep_dashboards.colors import BAD, GOOD, GOODPUT_COLORS, WARNING
from lockstep_dashboards.layouts.executive_objectives import BUDGETS, TREND
from lockstep_dashboards.layouts.ledger_panels import LEDGER_PANELS
from lockstep_dashboards.links import EXECUTIVE_BOARD
from lockstep_dashboards.panel import Board, Query, Row, Threshold
from lockstep_dashboards.selection import Selection, largest, one_value
from lockstep_dashboards.series_panels import bar_gauge, column, stat, table, time_series, title_of
from lockstep_dashboards.variables import (
    CLASSES_OF_LEDGER,
    QUEUES,
    THESE_LEDGER_CLASSES,
    THESE_QUEUES,
    THIS_CLUSTER,
    cluster_variable,
)

_HOUR_SECONDS = 3600
_TOKENS = 1_000_000
_GROUP = (CLUSTER, QUEUE, PROJECT, ledger.JOB_CLASS)
_ALL = Selection((THIS_CLUSTER, THESE_QUEUES, THESE_LEDGER_CLASSES), ())
_GROUPS = Selection(_ALL.matchers, _GROUP)
_USEFUL = one_of(GOODPUT, "productive", "evaluation")
_INFRA = eq(ledger.FAILURE_CLASS, "infra")
_MOST_GROUPS = 20
_NO_PRICE = "jobs that declare no price per GPU hour cost nothing here"
_NO_INCIDENT = "a range without such an incident has none"
_GPU_SECONDS = f"sum ({_ALL.increase(ledger.GPU_SECONDS)})"


def _useless_hours() -> Query:
    """GPU hours of each state that is no progress."""
    spent = by("sum", _ALL.increase(ledger.GPU_SECONDS), GOODPUT)
    useful = by("sum", _ALL.increase(ledger.GPU_SECONDS, _USEFUL), GOODPUT)
    return Query(
        expression=f"({spent} unless on (goodput) {useful}) / {_HOUR_SECONDS}",
        legend="{{goodput}}",
    )


def _shares() -> Query:
    """Shares of the states in all GPU time: together they are 1."""
    spent = _ALL.rate(ledger.GPU_SECONDS)
    every = f"on () group_left () (sum ({spent}) > 0)"
    return Query(expression=f"{by('sum', spent, GOODPUT)} / {every}", legend="{{goodput}}")


def _cost_per_million_tokens() -> Query:
    """Money of a project over the tokens that its jobs trained on, both over the range."""
    project = Selection((THIS_CLUSTER,), (CLUSTER, PROJECT))
    place = "cluster, job_id, node"
    owner = f"max by ({place}, project) ({project.over_range('last', training.JOB_INFO)})"
    tokens = f"sum by ({place}) ({project.increase(training.TOKENS)})"
    per_project = project.by("sum", f"{tokens} * on ({place}) group_left (project) {owner}")
    cost = project.by("sum", project.increase(ledger.COST))
    return largest(f"{cost} / ({per_project} / {_TOKENS} > 0)", _MOST_GROUPS)


def _per_day(metric: Metric, *labels: Label) -> Query:
    """How much a counter grew in the last day, at each point."""
    legend = " ".join(f"{{{{{label.name}}}}}" for label in labels)
    grown = _ALL.increase(metric, window="1d")
    return Query(
        expression=by("sum", grown, *labels) if labels else f"sum ({grown})",
        legend=legend or title_of(metric).lower(),
    )


_DELIVERY = Row(
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
            unit="h",
            colors=GOODPUT_COLORS,
            width=8,
        ),
        table(
            ledger.COST,
            column(ledger.COST, _GROUPS.grown(ledger.COST), "cost", Unit.NONE),
            column(
                ledger.GPU_SECONDS,
                one_value(
                    f"{_GROUPS.by('sum', _GROUPS.increase(ledger.GPU_SECONDS))} / {_HOUR_SECONDS}",
                    "",
                ),
                "GPU hours",
                "h",
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
            may_be_empty=_NO_PRICE,
        ),
        table(
            ledger.COST,
            _cost_per_million_tokens(),
            title="Cost per million tokens",
            good="falling, or steady for one model.",
            otherwise="compare GPU time by state of the project's jobs before and after.",
            columns=(PROJECT,),
            width=6,
            may_be_empty=_NO_PRICE,
        ),
        stat(
            ledger.JOBS_FINISHED,
            one_value(
                f"{_GPU_SECONDS} / {_HOUR_SECONDS}"
                f" / (sum ({_ALL.increase(ledger.JOBS_FINISHED, _INFRA)}) > 0)",
                "GPU hours",
            ),
            title="GPU hours between failures",
            note="Allocated GPU hours over jobs that failed by infrastructure.",
            good="rising; large clusters see one failure in some 10,000 to 50,000 GPU hours.",
            otherwise="`lockstep ledger review --week` names the nodes and parts that failed.",
            unit="h",
            width=6,
            height=8,
            may_be_empty=_NO_INCIDENT,
        ),
    ),
)
_JOBS = Row(
    title="Jobs",
    panels=(
        time_series(
            ledger.DEADLINES,
            _per_day(ledger.DEADLINES, ledger.DEADLINE),
            title="Deadlines a day",
            good="at least nine met for one missed.",
            otherwise="compare queue waits with time lost in jobs: one is capacity, one is faults.",
            unit=Unit.NONE,
            colors=(("met", GOOD), ("missed", BAD)),
            stacked=True,
            width=8,
        ),
        time_series(
            ledger.JOBS_FINISHED,
            _per_day(ledger.JOBS_FINISHED, ledger.JOB_OUTCOME),
            title="Jobs finished a day, by outcome",
            good="most succeed; failures are few and of their owners.",
            otherwise="the review of the week says which class of failure grew.",
            unit=Unit.NONE,
            colors=(("succeeded", GOOD), ("failed", BAD), ("preempted", WARNING)),
            stacked=True,
            width=8,
        ),
        time_series(
            ledger.QUEUE_WAIT,
            *(
                Query(
                    expression=f"histogram_quantile({quantile}, "
                    f"{by('sum', _ALL.increase(ledger.QUEUE_WAIT, window='1d'), QUEUE, LE)})",
                    legend=f"p{quantile * 100:g} {{{{queue}}}}",
                )
                for quantile in (0.5, 0.9)
            ),
            title="Queue wait",
            note="Of jobs that started within a day.",
            good="p90 within what the queue promises.",
            otherwise="capacity is short, or large jobs wait for a gap: look at the queue's jobs.",
            thresholds=(Threshold(color=GOOD), Threshold(color=WARNING, at=14_400)),
            width=8,
        ),
    ),
)
_RELIABILITY = Row(
    title="Restarts and recovery",
    collapsed=True,
    panels=(
        time_series(
            ledger.REQUEUES,
            _per_day(ledger.REQUEUES, ledger.REQUEUED_AFTER),
            title="Requeues a day, by cause",
            good="under one in twenty attempts.",
            otherwise="infra: the node board names what fails; preemption: look at the priorities.",
            unit=Unit.NONE,
            width=8,
        ),
        time_series(
            ledger.ATTEMPTS_STARTED,
            _per_day(ledger.ATTEMPTS_STARTED),
            _per_day(ledger.JOBS_STARTED),
            title="Starts a day",
            note="Attempts and jobs; the difference is restarts.",
            good="the two lines lie close together.",
            otherwise="the on-call board lists what restarted today.",
            unit=Unit.NONE,
            width=8,
        ),
        time_series(
            ledger.PREEMPTIONS,
            _per_day(ledger.PREEMPTIONS, QUEUE),
            title="Preemptions a day, by queue",
            good="only in queues that are meant to be preempted.",
            otherwise="raise the priority, or reserve capacity for the queue.",
            unit=Unit.NONE,
            width=8,
        ),
        stat(
            ledger.PREEMPTION_LOST,
            one_value(
                f"sum ({_ALL.increase(ledger.PREEMPTION_LOST)}) / {_HOUR_SECONDS}", "GPU hours"
            ),
            title="GPU hours lost to preemption",
            good="under a hundredth of the GPU hours delivered.",
            otherwise="checkpoint on the signal, or more often.",
            unit="h",
        ),
        time_series(
            ledger.RESUMES,
            _per_day(ledger.RESUMES, RESTORE_OUTCOME),
            title="Resumes a day, by outcome",
            good="all ok.",
            otherwise="a fallback skipped a damaged checkpoint: the runbook of failing resumes.",
            unit=Unit.NONE,
            width=10,
        ),
        time_series(
            ledger.CHECKPOINTS,
            _per_day(ledger.CHECKPOINTS, OUTCOME),
            title="Checkpoints a day, by outcome",
            good="99 in 100 ok.",
            otherwise="storage first: the fabric and storage board shows its errors and latency.",
            unit=Unit.NONE,
            width=10,
        ),
        time_series(
            ledger.JOB_DURATION,
            *(
                Query(
                    expression=f"histogram_quantile({quantile}, "
                    f"{by('sum', _ALL.increase(ledger.JOB_DURATION, window='1d'), LE)})",
                    legend=f"p{quantile * 100:g}",
                )
                for quantile in (0.5, 0.9)
            ),
            title="Duration of jobs",
            note="Of jobs settled within a day.",
            good="steady for a steady mix of jobs.",
            otherwise="compare with GPU time by state: longer jobs are more work, or more waste.",
        ),
        time_series(
            ledger.JOBS_FINISHED_GPU_SECONDS,
            Query(
                expression=by(
                    "sum",
                    _ALL.increase(ledger.JOBS_FINISHED_GPU_SECONDS, window="1d"),
                    ledger.FAILURE_CLASS,
                )
                + f" / {_HOUR_SECONDS}",
                legend="{{failure_class}}",
            ),
            title="GPU hours of finished jobs, by class of failure",
            note="A day; none is what succeeded.",
            good="none is by far the largest.",
            otherwise="infra is the cluster's to mend, user the owner's.",
            unit="h",
            stacked=True,
        ),
    ),
)
_LEDGER = Row(
    title="The ledger itself",
    collapsed=True,
    panels=LEDGER_PANELS,
)

EXECUTIVE = Board(
    uid=EXECUTIVE_BOARD,
    title="Lockstep: executive",
    description="What the cluster promised, what it delivered, and what it cost.",
    variables=(cluster_variable(ledger.JOBS_STARTED), QUEUES, CLASSES_OF_LEDGER),
    rows=(BUDGETS, TREND, _DELIVERY, _JOBS, _RELIABILITY, _LEDGER),
    annotations=annotations(Selection((THIS_CLUSTER,), ())),
    range="28d",
    refresh="5m",
)
