"""The board of one job: how far it is, where its steps go, and who is late."""

from lockstep_catalogue import training
from lockstep_catalogue.labels import (
    ATTEMPT,
    CLUSTER,
    GOODPUT,
    JOB_ID,
    KIND,
    NODE,
    OUTCOME,
    PHASE,
    RANK,
    STATE,
    WORLD_SIZE,
)
from lockstep_catalogue.metric import Unit
from lockstep_catalogue.promql import LE, one_of, select
from lockstep_catalogue.recorded import (
    EXCESS,
    LATENESS,
    LATENESS_RATIO,
    PHASE_PER_STEP,
    TOKENS_RATE,
)
from lockstep_catalogue.recorded_goodput import GOODPUT_BY_STATE
from lockstep_dashboards.job_queries import (
    NUM_WORST,
    age,
    aggregate,
    aggregate_rates,
    as_is,
    begun_attempts,
    exposed_per_step,
    firing_alerts,
    latency,
    num_attempts,
    of_worst,
    ranks_by_attempt,
    worst_ranks,
)
from lockstep_dashboards.panel import Annotation, Board, Row, Variable
from lockstep_dashboards.series_panels import heat_map, stat, table, time_series

_NO_CHECKPOINT = "a job that has written no checkpoint yet has no such age"
_NO_COLLECTIVE = "a job of one rank, or whose collectives no hook sees, counts none"
_NOT_REPORTED = "only a loop that passes it to the monitor reports it"

_PROGRESS = Row(
    title="Progress",
    panels=(
        stat(training.STEP, aggregate("max", training.STEP, legend="step")),
        stat(
            training.STEPS,
            aggregate_rates("avg", training.STEPS, legend="steps"),
            note="Mean over the ranks.",
            per_second=True,
        ),
        stat(TOKENS_RATE, as_is(TOKENS_RATE, "tokens")),
        stat(
            training.LOSS,
            aggregate("avg", training.LOSS, legend="loss"),
            note="Mean over the nodes.",
            may_be_empty=_NOT_REPORTED,
        ),
        stat(
            training.LAST_PROGRESS,
            age(training.LAST_PROGRESS),
            title="Age of last progress",
            note="Of the rank that reported last.",
            unit=Unit.SECONDS,
        ),
        stat(
            training.RANK_INFO,
            num_attempts(),
            title="Attempts",
            note="Within the range; one more than the restarts.",
        ),
        time_series(
            training.RANKS,
            aggregate("sum", training.RANKS, STATE, legend="{{state}}"),
            title="Ranks by state",
            stacked=True,
            width=8,
        ),
        time_series(
            training.RANK_WAITING,
            aggregate("sum", training.RANK_WAITING, legend="waiting"),
            title="Ranks waiting",
            width=8,
        ),
        table(
            training.RANK_INFO,
            ranks_by_attempt(WORLD_SIZE),
            title="Ranks by attempt",
            columns=(ATTEMPT, WORLD_SIZE),
            width=8,
        ),
    ),
)
_LATENCY = Row(
    title="Step latency",
    panels=(
        time_series(
            training.STEP_SECONDS,
            *(latency(quantile) for quantile in (0.5, 0.95, 0.99)),
            title="Step latency",
            note="Quantiles over all ranks.",
        ),
        heat_map(
            training.STEP_SECONDS,
            aggregate_rates("sum", training.STEP_SECONDS, LE, legend="{{le}}"),
            title="Step latency, all ranks",
        ),
    ),
)
_PHASES = Row(
    title="The step taken apart",
    panels=(
        time_series(
            PHASE_PER_STEP,
            aggregate("avg", PHASE_PER_STEP, PHASE, legend="{{phase}}"),
            note="Mean over the ranks.",
            stacked=True,
            width=12,
        ),
        time_series(
            GOODPUT_BY_STATE,
            aggregate("sum", GOODPUT_BY_STATE, GOODPUT, legend="{{goodput}}"),
            title="Ranks by goodput state",
            note="Waiting for stragglers is taken out of communication.",
            stacked=True,
            width=12,
        ),
    ),
)
_STRAGGLERS = Row(
    title="Stragglers",
    panels=(
        table(
            LATENESS,
            worst_ranks(),
            title="Latest ranks",
            note=f"The {NUM_WORST} latest ranks, mean over the time shown.",
            columns=(RANK, NODE),
            width=6,
        ),
        time_series(
            LATENESS,
            of_worst(LATENESS, NUM_WORST, "rank {{rank}}"),
            title="Lateness a step",
            note="The worst ranks.",
            width=9,
        ),
        time_series(
            LATENESS_RATIO,
            of_worst(LATENESS_RATIO, NUM_WORST, "rank {{rank}}"),
            title="Lateness as a share of the step",
            note="The worst ranks.",
            width=9,
        ),
        time_series(
            EXCESS,
            of_worst(EXCESS, 1, "rank {{rank}} {{phase}}"),
            title="Excess of the worst rank by phase",
            width=24,
        ),
    ),
)
_LEARNING = Row(
    title="Learning",
    panels=(
        *(
            time_series(
                metric,
                aggregate("avg", metric, legend="mean over the nodes"),
                width=6,
                may_be_empty=_NOT_REPORTED,
            )
            for metric in (training.LOSS, training.GRADIENT_NORM, training.LEARNING_RATE)
        ),
        time_series(
            training.NONFINITE_STEPS,
            aggregate("sum", training.NONFINITE_STEPS, legend="steps"),
            width=6,
        ),
    ),
)
_CHECKPOINTS = Row(
    title="Checkpoints",
    panels=(
        time_series(
            training.CHECKPOINTS,
            aggregate("sum", training.CHECKPOINTS, OUTCOME, legend="{{outcome}}"),
        ),
        time_series(
            training.LAST_CHECKPOINT,
            age(training.LAST_CHECKPOINT),
            title="Age of last durable checkpoint",
            unit=Unit.SECONDS,
            may_be_empty=_NO_CHECKPOINT,
        ),
    ),
)
_COLLECTIVES = Row(
    title="Collectives",
    panels=(
        time_series(
            training.COLLECTIVE_BYTES,
            aggregate_rates("sum", training.COLLECTIVE_BYTES, KIND, legend="{{kind}}"),
            title="Collective bytes per second",
            per_second=True,
            may_be_empty=_NO_COLLECTIVE,
        ),
        time_series(
            training.COLLECTIVE_SECONDS,
            exposed_per_step(),
            title="Exposed collectives per step",
            note="Of a rank, on the mean.",
            may_be_empty=_NO_COLLECTIVE,
        ),
    ),
)

JOB = Board(
    uid="lockstep-job",
    title="Lockstep: job",
    description="One training job: progress, latency, stragglers, learning, checkpoints.",
    variables=(
        Variable(label=CLUSTER, title="Cluster", source=select(training.RANK_INFO), several=True),
        Variable(
            label=JOB_ID,
            title="Job",
            source=select(training.RANK_INFO, one_of(CLUSTER, "$cluster")),
        ),
    ),
    rows=(
        _PROGRESS,
        _LATENCY,
        _PHASES,
        _STRAGGLERS,
        _LEARNING,
        _CHECKPOINTS,
        _COLLECTIVES,
    ),
    annotations=(
        Annotation(
            title="Alerts", expression=firing_alerts(), heading="{{alertname}}", color="red"
        ),
        Annotation(
            title="Attempts",
            expression=begun_attempts(),
            heading="attempt {{attempt}}",
            color="blue",
        ),
    ),
)
