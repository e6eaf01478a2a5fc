"""Rows of the job board about its steps: how long, where the time goes, and who is late."""

from lockstep_catalogue import training
from lockstep_catalogue.labels import GOODPUT, NODE, OWN_WORK_PHASES, PHASE, RANK
from lockstep_catalogue.metric import Unit
from lockstep_catalogue.promql import LE, one_of
from lockstep_catalogue.recorded import (
    EXCESS,
    LATENESS,
    LATENESS_RATIO,
    PHASE_PER_STEP,
    TOKENS_RATE,
)
from lockstep_catalogue.recorded_goodput import GOODPUT_BY_STATE
from lockstep_dashboards.colors import GOODPUT_COLORS
from lockstep_dashboards.layouts.job_queries import (
    CHOSEN,
    aggregate,
    aggregate_rates,
    as_is,
    latency,
    of_worst,
    of_worst_ranks,
    worst_ranks,
)
from lockstep_dashboards.panel import Query, Row
from lockstep_dashboards.selection import NUM_WORST
from lockstep_dashboards.series_panels import heat_map, table, time_series

_HEAT_MAP_RANKS = 40

LATENCY = Row(
    title="Step latency",
    panels=(
        time_series(
            training.STEP_SECONDS,
            *(latency(quantile) for quantile in (0.5, 0.95, 0.99)),
            title="Step latency",
            note="Quantiles over all ranks.",
            good="p95 within twice p50.",
            otherwise="a high p99 alone is checkpoints or evaluation; all of them: the row below.",
            width=8,
        ),
        heat_map(
            training.STEP_SECONDS,
            aggregate_rates("sum", training.STEP_SECONDS, LE, legend="{{le}}"),
            title="Step latency, all ranks",
            good="one narrow band.",
            otherwise="a second band are steps with a checkpoint, or a second kind of batch.",
            width=8,
        ),
        time_series(
            TOKENS_RATE,
            as_is(TOKENS_RATE, "tokens"),
            Query(
                expression=f"max_over_time({CHOSEN.of(TOKENS_RATE)}[$__range])",
                legend="best of the range before",
            ),
            title="Throughput against its best",
            good="within a tenth of its best.",
            otherwise="the step taken apart says what grew when it fell.",
            width=8,
        ),
    ),
)


def _shares_of_states() -> Query:
    """Shares of the states in the ranks' wall clock: together they are 1."""
    by_state = CHOSEN.by("sum", CHOSEN.of(GOODPUT_BY_STATE), GOODPUT)
    every = CHOSEN.by("sum", CHOSEN.of(GOODPUT_BY_STATE))
    return Query(
        expression=f"{by_state} / on (cluster, job_id) group_left () ({every} > 0)",
        legend="{{goodput}}",
    )


PHASES = Row(
    title="The step taken apart",
    panels=(
        time_series(
            PHASE_PER_STEP,
            aggregate("avg", PHASE_PER_STEP, PHASE, legend="{{phase}}"),
            note="Mean over the ranks.",
            good="forward and backward fill it, sync is under a tenth.",
            otherwise="data: the loaders; sync: one late rank, or the network; the table of the"
            " latest ranks tells them apart.",
            stacked=True,
        ),
        time_series(
            GOODPUT_BY_STATE,
            _shares_of_states(),
            title="Goodput by state",
            note="Shares of the ranks' wall clock; the stack is 100 %. Waiting for stragglers is"
            " taken out of communication.",
            good="productive above 80 %.",
            otherwise="straggler_wait: the row of stragglers; checkpoint, restore and rework: the"
            " row of checkpoints.",
            unit=Unit.RATIO,
            stacked=True,
            colors=GOODPUT_COLORS,
            minimum=0,
            maximum=1,
        ),
    ),
)
STRAGGLERS = Row(
    title="Stragglers",
    panels=(
        table(
            LATENESS,
            worst_ranks(),
            title="Latest ranks",
            note=f"The {NUM_WORST} latest ranks, mean over the time shown.",
            good="milliseconds, and no rank stands out.",
            otherwise="the rank that stands out is the slow one; a click on its node opens it.",
            columns=(RANK, NODE),
            width=6,
        ),
        time_series(
            LATENESS_RATIO,
            of_worst(LATENESS_RATIO, NUM_WORST, "rank {{rank}}"),
            title="Lateness as a share of the step",
            note="The worst ranks.",
            good="below 8 %; at 25 % somebody is paged.",
            otherwise="one line above the others is a slow rank; all ranks of a node: the node.",
            width=9,
        ),
        time_series(
            EXCESS,
            of_worst(EXCESS, 1, "rank {{rank}} {{phase}}"),
            title="Excess of the worst rank by phase",
            good="near 0 in each phase.",
            otherwise="data: its loader or storage; forward and backward: clock, temperature and"
            " Xid of its GPU; other: a callback.",
            width=9,
        ),
        heat_map(
            PHASE_PER_STEP,
            of_worst_ranks(
                CHOSEN.by("sum", CHOSEN.of(PHASE_PER_STEP, one_of(PHASE, *OWN_WORK_PHASES)), RANK),
                _HEAT_MAP_RANKS,
                "rank {{rank}}",
            ),
            title="Own work a step, ranks by time",
            note=f"Of the {_HEAT_MAP_RANKS} latest ranks.",
            good="one colour.",
            otherwise="a dark line is a slow rank, dark lines together a node or a stage.",
        ),
        heat_map(
            LATENESS,
            of_worst_ranks(
                CHOSEN.by("max", CHOSEN.of(LATENESS), RANK), _HEAT_MAP_RANKS, "rank {{rank}}"
            ),
            title="Arrival lag, ranks by time",
            note=f"Of the {_HEAT_MAP_RANKS} latest ranks.",
            good="pale.",
            otherwise="a dark line arrives late at every collective: all others wait for it.",
        ),
    ),
)
