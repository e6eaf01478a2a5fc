"""Rows of the job board about what it learns, and what it can come back to."""

from lockstep_catalogue import Unit, training
from lockstep_catalogue.labels import OUTCOME
from lockstep_dashboards.layouts.job_queries import age, aggregate, counted
from lockstep_dashboards.panel import Row
from lockstep_dashboards.series_panels import time_series, title_of

NOT_REPORTED = "only a loop that passes it to the monitor reports it"
NO_CHECKPOINT = "a job that has written no checkpoint yet has none"
_CURVES = (
    (
        training.LOSS,
        "it falls, or lies flat near the end.",
        "a spike: look at the gradient norm in the steps before; growth: roll back.",
    ),
    (
        training.GRADIENT_NORM,
        "steady, below the clipping norm.",
        "a climb over many steps is divergence, a jump is data or hardware.",
    ),
    (
        training.LEARNING_RATE,
        "it follows its schedule.",
        "a restart that begins the warm-up again lost the scheduler's state.",
    ),
)

LEARNING = Row(
    title="Learning",
    panels=(
        *(
            time_series(
                metric,
                aggregate("avg", metric, legend="mean over the nodes"),
                title=f"{title_of(metric)} over time",
                width=6,
                good=good,
                otherwise=otherwise,
                may_be_empty=NOT_REPORTED,
            )
            for metric, good, otherwise in _CURVES
        ),
        time_series(
            training.NONFINITE_STEPS,
            counted(training.NONFINITE_STEPS, legend="steps"),
            note="New ones at each point.",
            good="0.",
            otherwise="somebody is paged; the runbook says how to find the first bad step.",
            width=6,
        ),
    ),
)
CHECKPOINTS = Row(
    title="Checkpoints",
    panels=(
        time_series(
            training.CHECKPOINTS,
            counted(training.CHECKPOINTS, OUTCOME, legend="{{outcome}}"),
            note="New ones at each point.",
            good="ok, once an interval.",
            otherwise="failed or invalid: storage; the board of fabric and storage.",
        ),
        time_series(
            training.LAST_CHECKPOINT,
            age(training.LAST_CHECKPOINT),
            title="Age of last durable checkpoint",
            good="a saw tooth as high as the interval.",
            otherwise="what is above it is lost when the job ends now.",
            unit=Unit.SECONDS,
            may_be_empty=NO_CHECKPOINT,
        ),
    ),
)
