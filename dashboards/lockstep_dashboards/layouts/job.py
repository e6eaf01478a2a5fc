"""The board of one job: how far it is, where its steps go, who is late, and what it learns."""

from lockstep_catalogue import Unit, training
from lockstep_catalogue.labels import ATTEMPT, STATE, WORLD_SIZE
from lockstep_catalogue.recorded import TOKENS_RATE
from lockstep_dashboards.annotations import annotations
from lockstep_dashboards.colors import BAD, GOOD, WARNING
from lockstep_dashboards.layouts.job_detail import DETAIL_ROWS
from lockstep_dashboards.layouts.job_learning import CHECKPOINTS, LEARNING, NOT_REPORTED
from lockstep_dashboards.layouts.job_queries import (
    CHOSEN,
    age,
    aggregate,
    aggregate_rates,
    as_is,
    num_attempts,
    ranks_by_attempt,
)
from lockstep_dashboards.layouts.job_steps import LATENCY, PHASES, STRAGGLERS
from lockstep_dashboards.links import JOB_BOARD
from lockstep_dashboards.panel import Board, Row, Threshold
from lockstep_dashboards.series_panels import stat, table, time_series
from lockstep_dashboards.variables import JOB as THE_JOB
from lockstep_dashboards.variables import cluster_variable

_SILENCE = (Threshold(color=GOOD), Threshold(color=WARNING, at=60), Threshold(color=BAD, at=300))
_PROGRESS = Row(
    title="Progress",
    panels=(
        stat(
            training.STEP,
            aggregate("max", training.STEP, legend="step"),
            good="it rises.",
            otherwise="look at the age of the last progress, then at the ranks by state.",
        ),
        stat(
            training.STEPS,
            aggregate_rates("avg", training.STEPS, legend="steps"),
            note="Mean over the ranks.",
            per_second=True,
            good="steady, and what this job did yesterday.",
            otherwise="the row of the step taken apart says which phase grew.",
        ),
        stat(
            TOKENS_RATE,
            as_is(TOKENS_RATE, "tokens"),
            good="within a tenth of the job's best hour.",
            otherwise="compare with the steps per second: fewer tokens a step are another batch.",
        ),
        stat(
            training.LOSS,
            aggregate("avg", training.LOSS, legend="loss"),
            note="Mean over the nodes.",
            good="it falls, or lies flat near the end.",
            otherwise="open the row of learning.",
            may_be_empty=NOT_REPORTED,
        ),
        stat(
            training.LAST_PROGRESS,
            age(training.LAST_PROGRESS),
            title="Age of last progress",
            note="Of the rank that reported last.",
            good="a few seconds.",
            otherwise="the job stands: ranks that others wait for are on the on-call board.",
            unit=Unit.SECONDS,
            thresholds=_SILENCE,
        ),
        stat(
            training.RANK_INFO,
            num_attempts(),
            title="Attempts",
            note="Within the range; one more than the restarts.",
            good="1.",
            otherwise="the table of attempts and the blue lines say when; `lockstep ledger job`"
            " says why.",
        ),
        time_series(
            training.RANKS,
            aggregate("sum", training.RANKS, STATE, legend="{{state}}"),
            title="Ranks by state",
            good="all training.",
            otherwise="gone or failed ranks: the others wait for them and time out later.",
            stacked=True,
        ),
        table(
            training.RANK_INFO,
            ranks_by_attempt(WORLD_SIZE),
            title="Ranks by attempt",
            good="as many ranks in each attempt.",
            otherwise="a smaller attempt runs without the nodes that failed.",
            columns=(ATTEMPT, WORLD_SIZE),
        ),
    ),
)

JOB = Board(
    uid=JOB_BOARD,
    title="Lockstep: job",
    description="One training job: progress, latency, stragglers, learning, checkpoints.",
    variables=(cluster_variable(training.RANK_INFO), THE_JOB),
    rows=(_PROGRESS, LATENCY, PHASES, STRAGGLERS, LEARNING, CHECKPOINTS, *DETAIL_ROWS),
    annotations=annotations(CHOSEN),
)
