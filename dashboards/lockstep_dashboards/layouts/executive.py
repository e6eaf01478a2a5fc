"""The board of 28 days: what the cluster promised, what it delivered, and what it cost."""

from lockstep_catalogue import Label, Metric, Unit, ledger
from lockstep_catalogue.labels import (
    OUTCOME,
    QUEUE,
    RESTORE_OUTCOME,
)
from lockstep_catalogue.promql import LE, by
from lockstep_dashboards.annotations import annotations
from lockstep_dashboards.colors import BAD, GOOD, WARNING
from lockstep_dashboards.layouts.executive_delivery import ALL, DELIVERY, HOUR_SECONDS, NO_PRICE
from lockstep_dashboards.layouts.executive_objectives import CLASSES, HEADLINES, TREND
from lockstep_dashboards.layouts.ledger_panels import LEDGER_PANELS
from lockstep_dashboards.links import EXECUTIVE_BOARD
from lockstep_dashboards.panel import Board, Query, Row, Threshold
from lockstep_dashboards.selection import Selection, one_value
from lockstep_dashboards.series_panels import stat, time_series, title_of
from lockstep_dashboards.variables import (
    CLASSES_OF_LEDGER,
    QUEUES,
    THIS_CLUSTER,
    cluster_variable,
)


def _per_day(metric: Metric, *labels: Label) -> Query:
    """How much a counter grew in the last day, at each point."""
    legend = " ".join(f"{{{{{label.name}}}}}" for label in labels)
    grown = ALL.increase(metric, window="1d")
    return Query(
        expression=by("sum", grown, *labels) if labels else f"sum ({grown})",
        legend=legend or title_of(metric).lower(),
    )


_BUDGETS = Row(
    title="Budgets",
    panels=(
        *HEADLINES,
        stat(
            ledger.GPU_SECONDS,
            one_value(f"sum ({ALL.increase(ledger.GPU_SECONDS)}) / {HOUR_SECONDS}", "GPU hours"),
            title="GPU hours delivered",
            note="Allocated within the range.",
            good="close to what the cluster has.",
            otherwise="idle GPUs: the queue of the on-call board, or drained nodes.",
            unit=Unit.NONE,
        ),
        stat(
            ledger.COST,
            one_value(f"sum ({ALL.increase(ledger.COST)})", "cost"),
            title="Cost",
            note="Within the range, in the currency of the jobs' price per GPU hour.",
            good="within the plan.",
            otherwise="the table of projects says who spent it.",
            may_be_empty=NO_PRICE,
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
                    f"{by('sum', ALL.increase(ledger.QUEUE_WAIT, window='1d'), QUEUE, LE)})",
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
                f"sum ({ALL.increase(ledger.PREEMPTION_LOST)}) / {HOUR_SECONDS}", "GPU hours"
            ),
            title="GPU hours lost to preemption",
            good="under a hundredth of the GPU hours delivered.",
            otherwise="checkpoint on the signal, or more often.",
            unit=Unit.NONE,
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
                    f"{by('sum', ALL.increase(ledger.JOB_DURATION, window='1d'), LE)})",
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
                    ALL.increase(ledger.JOBS_FINISHED_GPU_SECONDS, window="1d"),
                    ledger.FAILURE_CLASS,
                )
                + f" / {HOUR_SECONDS}",
                legend="{{failure_class}}",
            ),
            title="GPU hours of finished jobs, by class of failure",
            note="A day; none is what succeeded.",
            good="none is by far the largest.",
            otherwise="infra is the cluster's to mend, user the owner's.",
            unit=Unit.NONE,
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
    rows=(_BUDGETS, TREND, DELIVERY, _JOBS, _RELIABILITY, CLASSES, _LEDGER),
    annotations=annotations(Selection((THIS_CLUSTER,), ())),
    range="28d",
    refresh="5m",
)
