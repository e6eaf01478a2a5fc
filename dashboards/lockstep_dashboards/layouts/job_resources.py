"""Closed rows of the job board: memory, data, hangs, and the monitor itself."""

from lockstep_catalogue import (
    Unit,
    job_ranks,
    job_state,
    job_watch,
    parts,
    training,
)
from lockstep_catalogue.labels import (
    ANOMALY,
    GOODPUT,
    MEMORY,
    NODE,
    PHASE,
    RANK,
    TROUBLE,
    WHERE,
)
from lockstep_catalogue.promql import by
from lockstep_dashboards.colors import GOODPUT_COLORS
from lockstep_dashboards.layouts.job_panels import counted_by_node, graph, present
from lockstep_dashboards.layouts.job_queries import (
    CHOSEN,
    aggregate,
    aggregate_rates,
)
from lockstep_dashboards.panel import Query, Row
from lockstep_dashboards.selection import MOST_ROWS, largest
from lockstep_dashboards.series_panels import bar_gauge, column, table

_NO_COLLECTIVE = "a job of one rank, or whose collectives no hook sees, counts none"
_NO_TROUBLE = "a job without such trouble has none"
_NO_GPU = "nodes without GPUs have none"
_NOT_DECLARED = "only a job that declares FLOPs per token, or its devices' peak, has it"
_HEAT_MAP_NODES = 40


RESOURCES = Row(
    title="Memory and data",
    collapsed=True,
    panels=(
        graph(
            job_state.MEMORY_BYTES,
            aggregate("max", job_state.MEMORY_BYTES, MEMORY, legend="{{memory}}"),
            "flat after the first steps.",
            "growth is a leak; reserved far above allocated is fragmentation.",
            title="Memory of the largest rank",
        ),
        graph(
            job_state.ALLOCATOR_RETRIES,
            aggregate_rates("sum", job_state.ALLOCATOR_RETRIES, legend="retries"),
            "none.",
            "each stops the device: expandable segments, or a smaller batch.",
            title="Allocator retries per second",
            per_second=True,
        ),
        graph(
            job_state.RUN_QUEUE_SECONDS,
            aggregate_rates("sum", job_state.RUN_QUEUE_SECONDS, legend="ranks"),
            "below 1 % of the ranks.",
            "the loops wait for a core: fewer loader workers, or more cores.",
            title="Ranks waiting for a core",
            may_be_empty="a kernel that does not count it has none",
            unit=Unit.NONE,
        ),
        counted_by_node(
            job_state.OUT_OF_MEMORY,
            title="Allocations that failed",
            otherwise="the ticket names the rank; lower the batch of that stage.",
        ),
        counted_by_node(
            job_ranks.OUT_OF_MEMORY_RANK,
            RANK,
            title="Ranks whose allocations failed",
            otherwise="one rank: skewed data; all of a stage: the stage is too large.",
        ),
        graph(
            job_state.COLLECTION_SECONDS,
            aggregate_rates("sum", job_state.COLLECTION_SECONDS, legend="all ranks"),
            "below 1 % of the ranks.",
            "collect on all ranks at the same step.",
            title="Python's garbage collection",
            unit=Unit.NONE,
        ),
        graph(
            job_state.COLLECTIONS,
            aggregate_rates("sum", job_state.COLLECTIONS, legend="all ranks"),
            "few.",
            "objects are made in every step.",
            title="Runs of the garbage collector",
            per_second=True,
        ),
        graph(
            training.SAMPLES,
            aggregate_rates("sum", training.SAMPLES, legend="samples"),
            "steady.",
            "see the tokens per second.",
            title="Samples per second",
            per_second=True,
        ),
        table(
            job_ranks.HEAVIEST_LOAD,
            column(
                job_ranks.HEAVIEST_LOAD,
                largest(
                    CHOSEN.by(
                        "max", CHOSEN.of(job_ranks.HEAVIEST_LOAD), NODE, RANK, job_ranks.LOAD
                    ),
                    MOST_ROWS,
                ),
                "heaviest",
            ),
            column(
                job_ranks.MEDIAN_LOAD,
                largest(
                    CHOSEN.by("max", CHOSEN.of(job_ranks.MEDIAN_LOAD), NODE, job_ranks.LOAD),
                    MOST_ROWS,
                ),
                "median of the node",
            ),
            title="Ranks with the most data",
            good="the heaviest close to the median.",
            otherwise="the data is skewed: shard by length, not by count.",
            columns=(NODE, RANK, job_ranks.LOAD),
            may_be_empty="a loop that reports no load has none",
        ),
        graph(
            job_watch.HOST_BOUND_SECONDS,
            aggregate_rates("sum", job_watch.HOST_BOUND_SECONDS, PHASE, legend="{{phase}}"),
            "near 0.",
            "the host launches too slowly: larger kernels, or CUDA graphs.",
            title="Streams idle for the host",
            may_be_empty="only steps timed on a stream have it",
            unit=Unit.NONE,
        ),
        graph(
            job_watch.LAUNCH_BOUND_STEPS,
            Query(
                expression=f"{CHOSEN.by('sum', CHOSEN.rate(job_watch.LAUNCH_BOUND_STEPS))}"
                f" / ({CHOSEN.by('sum', CHOSEN.rate(job_watch.DEVICE_STEPS))} > 0)",
                legend="of the steps",
            ),
            "below a tenth.",
            "as beside it.",
            title="Steps bound by launches",
            unit=Unit.RATIO,
            may_be_empty="only steps timed on a stream are judged",
        ),
    ),
)
WATCH = Row(
    title="Hangs, anomalies, and the monitor",
    collapsed=True,
    panels=(
        graph(
            job_watch.ATTEMPT_NUMBER,
            aggregate("max", job_watch.ATTEMPT_NUMBER, legend="newest attempt"),
            "flat.",
            "each step is a restart: `lockstep ledger job` says why.",
            title="Restarts so far",
        ),
        graph(
            job_watch.WORLD_RANKS,
            aggregate("max", job_watch.WORLD_RANKS, legend="ranks of the job"),
            "flat.",
            "an elastic job lost or gained nodes.",
        ),
        graph(
            job_watch.HUNG_RANKS,
            aggregate("sum", job_watch.HUNG_RANKS, legend="ranks"),
            "0.",
            "somebody is paged: the page names the missing rank.",
        ),
        present(
            job_watch.HANG_FIRST,
            RANK,
            job_watch.PHASE_AT_HANG,
            title="First rank that stopped",
            otherwise="its stacks and its flight recorder lie in the job's folder on the node.",
        ),
        present(
            job_watch.HANG_MISSING,
            RANK,
            job_watch.PHASE_AT_HANG,
            title="Ranks that others wait for",
            otherwise="this is the culprit; end it, and the launcher restarts the job.",
        ),
        counted_by_node(
            job_state.NONFINITE_VALUES,
            WHERE,
            title="Values that were NaN or infinite",
            otherwise="parameters: roll back; loss alone: a bad batch.",
        ),
        counted_by_node(
            job_state.ANOMALIES,
            ANOMALY,
            title="Spikes and divergences",
            otherwise="on one node: its data or GPU; on all: the model.",
        ),
        present(
            job_state.ANOMALOUS,
            ANOMALY,
            title="Ranks in a spike or a divergence",
            otherwise="as beside it.",
        ),
        graph(
            job_state.MEASURED_SECONDS,
            Query(
                expression=f"{CHOSEN.by('sum', CHOSEN.rate(job_state.MEASURED_SECONDS))}"
                f" / ({CHOSEN.by('sum', CHOSEN.rate(job_state.MEASURED_STEPS))} > 0)",
                legend="a step",
            ),
            "below 1 % of the step.",
            "report it; `lockstep.disabled()` turns the monitor off.",
            title="The monitor's own time a step",
        ),
        counted_by_node(
            job_state.TROUBLES,
            TROUBLE,
            title="Problems around the monitor",
            otherwise="they did not stop training; docs/instrumentation.md explains each.",
        ),
        present(
            parts.FAILED_PARTS,
            parts.PART,
            title="Parts of the monitor that are off",
            otherwise="an error switched it off: the rank's log has it.",
        ),
        graph(
            job_state.GOODPUT_SECONDS,
            aggregate_rates("sum", job_state.GOODPUT_SECONDS, GOODPUT, legend="{{goodput}}"),
            "mostly productive.",
            "see goodput by state: there the waits for stragglers are told apart.",
            title="Ranks by state, as the pages count",
            unit=Unit.NONE,
            stacked=True,
            colors=GOODPUT_COLORS,
        ),
        bar_gauge(  # a graph of all ranks' phases would take seconds
            training.PHASE_SECONDS,
            Query(
                expression=by("sum", CHOSEN.increase(training.PHASE_SECONDS), PHASE),
                legend="{{phase}}",
            ),
            title="Time of all ranks by phase",
            note="Within the range.",
            good="forward and backward are by far the longest.",
            otherwise="as the step taken apart says.",
            width=8,
        ),
    ),
)
