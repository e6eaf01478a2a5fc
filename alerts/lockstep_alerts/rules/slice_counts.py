"""PromQL of the counts of slices: which are bad, and how many there are.

Some are held against the best hour of their job, some against a limit that is the same for every
job, and some are of GPUs or of all jobs and no job's own.
"""

from lockstep_alerts.rules.parameters import Expressions, Parameters
from lockstep_alerts.rules.slices import SLICE_SECONDS, name_objective
from lockstep_catalogue import gpu, ledger, recorded, training
from lockstep_catalogue.labels import CLUSTER, GPU, JOB_ID, NODE, WRITING
from lockstep_catalogue.promql import (
    by,
    eq,
    has,
    increase,
    names,
    rate_of_count,
    rate_of_sum,
    select,
)

_JOB = (CLUSTER, JOB_ID)
_JOB_JOIN = f"on ({names(*_JOB)})"


def _blocks_too_long(rules: Parameters) -> str:
    hour = rules.windows.cover(3600)
    blocking = eq(WRITING, "blocking")
    seconds = by("sum", rate_of_sum(training.CHECKPOINT_SECONDS, hour, blocking), *_JOB)
    number = by("sum", rate_of_count(training.CHECKPOINT_SECONDS, hour, blocking), *_JOB)
    by_node = by("max", rate_of_count(training.CHECKPOINT_SECONDS, hour, blocking), *_JOB)
    ratio = rules.limits.checkpoint_blocking_ratio
    most_seconds = rules.limits.checkpoint_blocking.seconds
    most = f"clamp_max({ratio:g} / ({by_node} > 0), {most_seconds:g})"
    return f"{seconds} / ({number} > 0) > bool {_JOB_JOIN} {most}"


def _is_too_old(rules: Parameters) -> str:
    age = f"time() - {select(recorded.LAST_DURABLE)}"
    most = f"{rules.limits.recovery_point_intervals:g} * {select(recorded.CHECKPOINT_INTERVAL)}"
    return f"{age} > bool {_JOB_JOIN} ({most})"


def _has_odd_loss(rules: Parameters) -> str:
    jobs = f"0 * {by('count', select(training.LOSS), *_JOB)}"
    odd = by("sum", select(training.ANOMALOUS), *_JOB)
    grown = by("sum", increase(training.NONFINITE_STEPS, rules.windows.cover(SLICE_SECONDS)), *_JOB)
    return f"(({odd} or {jobs}) + {_JOB_JOIN} ({grown} or {jobs}) and {_JOB_JOIN} {jobs}) > bool 0"


def _bad(rules: Parameters) -> str:
    limit = f"on ({ledger.SLO.name}) group_left () {select(recorded.SLICE_LIMIT)}"
    relative = f"{select(recorded.SLICE_RATIO)} < bool {limit}"
    absolute = {
        "checkpoint_blocking": _blocks_too_long(rules),
        "recovery_point": _is_too_old(rules),
        "loss_convergence": _has_odd_loss(rules),
    }
    return "\nor\n".join((relative, *(name_objective(text, slo) for slo, text in absolute.items())))


_ALLOCATED = (CLUSTER, NODE, GPU)


def _activity(rules: Parameters) -> str:
    mean = f"avg_over_time({select(gpu.GPU_SM_ACTIVE)}[{rules.windows.cover(SLICE_SECONDS)}])"
    # ``group``: a GPU that several jobs share, or that is split, is one GPU.
    owned = by("group", select(gpu.GPU_OWNER_INFO, has(JOB_ID)), *_ALLOCATED)
    return f"({mean} and on ({names(*_ALLOCATED)}) {owned})"


def _running() -> str:
    return by("max", f"{select(ledger.JOBS, eq(ledger.JOB_STATUS, 'running'))} > 0", CLUSTER)


def _slices_total(rules: Parameters) -> str:
    gpus = by("count", _activity(rules), CLUSTER)
    counts = (
        by("count", select(recorded.SLICE_BAD), CLUSTER, ledger.SLO),
        name_objective(gpus, "gpu_activity"),
        name_objective(_running(), "telemetry"),
    )
    return "\nor\n".join(counts)


def _slices_bad(rules: Parameters) -> str:
    activity = _activity(rules)
    idle = by("count", f"{activity} < {rules.limits.min_activity_ratio:g}", CLUSTER)
    observed = by("count", by("group", select(training.RANK_INFO), *_JOB), CLUSTER)
    running = _running()
    unseen = f"clamp_min({running} - on ({CLUSTER.name}) ({observed} or 0 * {running}), 0)"
    counts = (
        by("sum", select(recorded.SLICE_BAD), CLUSTER, ledger.SLO),
        name_objective(f"({idle} or 0 * {by('count', activity, CLUSTER)})", "gpu_activity"),
        name_objective(unseen, "telemetry"),
    )
    return "\nor\n".join(counts)


EXPRESSIONS: Expressions = {
    recorded.SLICE_BAD: _bad,
    recorded.SLICES_TOTAL: _slices_total,
    recorded.SLICES_BAD: _slices_bad,
}
