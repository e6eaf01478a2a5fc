"""Closed rows of the job board: nodes, collectives, checkpoints, memory, data, the monitor."""

from lockstep_catalogue import (
    Metric,
    Unit,
    gpu_activity,
    gpu_power,
    job_ranks,
    job_state,
    job_watch,
    training,
)
from lockstep_catalogue.labels import (
    CLUSTER,
    DOMAIN,
    KIND,
    NODE,
    RANK,
    RESTORE_OUTCOME,
    WRITING,
)
from lockstep_catalogue.promql import Matcher, by, eq, names
from lockstep_catalogue.recorded import LATENESS_RATIO, MFU, STAGE_EXCESS_RATIO
from lockstep_dashboards.layouts.job_learning import NO_CHECKPOINT
from lockstep_dashboards.layouts.job_panels import counted_by_node, each_part, graph, present
from lockstep_dashboards.layouts.job_queries import (
    CHOSEN,
    aggregate,
    aggregate_rates,
    as_is,
    counted,
    exposed_per_step,
)
from lockstep_dashboards.layouts.job_resources import RESOURCES, WATCH
from lockstep_dashboards.panel import Panel, Query, Row
from lockstep_dashboards.selection import Selection, largest
from lockstep_dashboards.series_panels import column, heat_map, table, time_series, title_of
from lockstep_dashboards.variables import THIS_CLUSTER

_NO_COLLECTIVE = "a job of one rank, or whose collectives no hook sees, counts none"
_NO_TROUBLE = "a job without such trouble has none"
_NO_GPU = "nodes without GPUs have none"
_NOT_DECLARED = "only a job that declares FLOPs per token, or its devices' peak, has it"
_HEAT_MAP_NODES = 40


def _of_nodes(metric: Metric, *matchers: Matcher) -> Query:
    """Means of the GPUs of the job's latest nodes."""
    chosen = Selection((THIS_CLUSTER,), (CLUSTER, NODE))
    lateness = f"avg_over_time({CHOSEN.of(LATENESS_RATIO)}[$__range] @ end())"
    latest = f"topk({_HEAT_MAP_NODES}, {by('max', lateness, CLUSTER, NODE)})"
    gauge = chosen.by("avg", chosen.of(metric, *matchers))
    return Query(expression=f"{gauge} and on ({names(CLUSTER, NODE)}) {latest}", legend="{{node}}")


def _node_heat_map(metric: Metric, good: str, otherwise: str, *matchers: Matcher) -> Panel:
    return heat_map(
        metric,
        _of_nodes(metric, *matchers),
        title=f"{title_of(metric)}, nodes by time",
        note=f"Of the {_HEAT_MAP_NODES} nodes with the latest ranks, mean of their GPUs.",
        good=good,
        otherwise=otherwise,
        may_be_empty=_NO_GPU,
    )


_NODES = Row(
    title="Nodes of the job",
    collapsed=True,
    panels=(
        _node_heat_map(
            gpu_activity.GPU_SM_ACTIVE,
            "one colour.",
            "a pale line: the node has less work, or waits; a click on it opens its board.",
        ),
        _node_heat_map(
            gpu_power.GPU_CLOCK,
            "one colour.",
            "a pale line: its clocks are held back; its board says why.",
            eq(DOMAIN, "sm"),
        ),
        _node_heat_map(gpu_power.GPU_POWER, "one colour.", "a pale line waits, or is capped."),
        _node_heat_map(
            gpu_power.GPU_TEMPERATURE,
            "one colour, under 80 degrees.",
            "a dark line is cooled worse.",
        ),
        time_series(
            MFU,
            as_is(MFU, "MFU"),
            good="0.35 to 0.55 for dense models of today.",
            otherwise="the step taken apart says where the time goes.",
            may_be_empty=_NOT_DECLARED,
            width=8,
        ),
        time_series(
            STAGE_EXCESS_RATIO,
            Query(expression=CHOSEN.of(STAGE_EXCESS_RATIO), legend="stage {{pp}}"),
            title="Excess of the pipeline stages",
            good="all near 0.",
            otherwise="a stage above the others has more layers, or slower nodes.",
            may_be_empty="a job without pipeline stages has none",
            width=8,
        ),
        graph(
            job_state.MODEL_FLOPS,
            Query(
                expression=f"{CHOSEN.by('sum', CHOSEN.rate(job_state.MODEL_FLOPS))}"
                f" / {CHOSEN.by('sum', CHOSEN.of(job_state.PEAK_FLOPS))}",
                legend="of the peak",
            ),
            "as the MFU beside it.",
            "it differs where steps were repeated.",
            title="FLOPs of the tokens, of the peak of the devices",
            unit=Unit.RATIO,
            may_be_empty=_NOT_DECLARED,
        ),
    ),
)
_COLLECTIVES = Row(
    title="Collectives",
    collapsed=True,
    panels=(
        graph(
            training.COLLECTIVE_BYTES,
            aggregate_rates("sum", training.COLLECTIVE_BYTES, KIND, legend="{{kind}}"),
            "steady.",
            "it follows the steps; see the exposed time.",
            title="Collective bytes per second",
            per_second=True,
            may_be_empty=_NO_COLLECTIVE,
        ),
        graph(
            training.COLLECTIVE_SECONDS,
            exposed_per_step(),
            "under a tenth of the step.",
            "one late rank makes all others wait: stragglers first, then the network.",
            title="Exposed collectives per step",
            note="Of a rank, on the mean.",
            may_be_empty=_NO_COLLECTIVE,
        ),
        graph(
            training.COLLECTIVES,
            aggregate_rates("sum", training.COLLECTIVES, KIND, legend="{{kind}}"),
            "as many a step.",
            "more of them a step: buckets became smaller.",
            title="Collectives per second",
            per_second=True,
            may_be_empty=_NO_COLLECTIVE,
        ),
        graph(
            job_watch.BUS_RATE,
            aggregate("min", job_watch.BUS_RATE, KIND, legend="{{kind}}"),
            "near what nccl-tests reaches for large messages.",
            "a port or NVLink of the slowest node: the fabric's board.",
            title="Bus bandwidth of the slowest node",
            may_be_empty=_NO_COLLECTIVE,
        ),
        graph(
            job_watch.BUS_BYTES,
            aggregate_rates("sum", job_watch.BUS_BYTES, KIND, legend="{{kind}}"),
            "steady.",
            "it follows the steps.",
            title="Bytes on the bus per second",
            per_second=True,
            may_be_empty=_NO_COLLECTIVE,
        ),
        graph(
            training.RANK_WAITING,
            aggregate("sum", training.RANK_WAITING, legend="waiting"),
            "a changing part of the ranks.",
            "all but one, for long: that one is the culprit of a hang.",
            title="Ranks waiting",
        ),
    ),
)
_RECOVERY = Row(
    title="Checkpoints and restores in detail",
    collapsed=True,
    panels=(
        graph(
            job_state.CHECKPOINT_SECONDS,
            CHOSEN.quantile(0.95, job_state.CHECKPOINT_SECONDS, WRITING, legend="{{writing}}"),
            "blocking under 60 s, or 2 % of the interval.",
            "write asynchronously, or fewer files.",
            title="Checkpoint latency, p95",
            may_be_empty=NO_CHECKPOINT,
        ),
        graph(
            job_state.CHECKPOINT_BYTES,
            aggregate_rates("sum", job_state.CHECKPOINT_BYTES, legend="written"),
            "bursts as high as the storage allows.",
            "lower than yesterday: the storage is shared or degraded.",
            title="Checkpoint bytes per second",
            per_second=True,
            may_be_empty=NO_CHECKPOINT,
        ),
        table(
            job_state.SLOWEST_WRITER,
            largest(CHOSEN.by("max", CHOSEN.of(job_state.SLOWEST_WRITER), NODE, RANK)),
            title="Slowest writers",
            good="alike on all nodes.",
            otherwise="one node: its mount or its disk.",
            columns=(NODE, RANK),
            width=8,
            may_be_empty=NO_CHECKPOINT,
        ),
        graph(
            job_state.CHECKPOINTS_VERIFIED,
            counted(job_state.CHECKPOINTS_VERIFIED, legend="verified"),
            "as many as checkpoints.",
            "checkpoints that nobody reads back may be damaged.",
            may_be_empty=NO_CHECKPOINT,
        ),
        graph(
            job_state.RESTORES,
            counted(job_state.RESTORES, RESTORE_OUTCOME, legend="{{restore}}"),
            "only ok, one an attempt.",
            "fallback: a newer checkpoint was invalid.",
        ),
        graph(
            job_state.LOST_STEPS,
            counted(job_state.LOST_STEPS, legend="steps"),
            "fewer than an interval of checkpoints a restart.",
            "checkpoint more often.",
        ),
        counted_by_node(
            job_state.PASSED_OVER,
            title="Invalid checkpoints skipped",
            otherwise="find what damaged them before the older ones are deleted.",
        ),
        present(
            job_state.ODD_REPLICAS,
            title="Ranks that differ from their replicas",
            otherwise="silent corruption: stop the job; the runbook says which GPU to suspect.",
        ),
        graph(
            job_state.REPLICAS,
            aggregate("sum", job_state.REPLICAS, legend="ranks"),
            "all ranks that have replicas.",
            "ranks that are not compared can be corrupted unseen.",
            may_be_empty="a job without replicas has none",
        ),
        table(
            job_ranks.FINGERPRINT,
            column(
                job_ranks.FINGERPRINT,
                each_part(job_ranks.FINGERPRINT),
                "fingerprint",
            ),
            column(
                job_ranks.FINGERPRINT_STEP,
                each_part(job_ranks.FINGERPRINT_STEP),
                "step",
            ),
            title="Fingerprints of the model's parts",
            good="the same for each part at the same step.",
            otherwise="the node that differs holds the corrupted replica.",
            columns=(NODE, job_ranks.PART_OF_MODEL),
            may_be_empty="a job without replicas has none",
        ),
    ),
)
DETAIL_ROWS = (_NODES, _COLLECTIVES, _RECOVERY, RESOURCES, WATCH)
