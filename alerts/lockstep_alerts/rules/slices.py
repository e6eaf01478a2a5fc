"""PromQL of slices of jobs: their values, baselines, verdicts and counts."""

from lockstep_alerts.rules.parameters import Expressions, Parameters
from lockstep_catalogue import gpu, ledger, recorded, training
from lockstep_catalogue.labels import CLUSTER, GPU, JOB_ID, KIND, NODE, PHASE, RANK, WRITING
from lockstep_catalogue.promql import (
    by,
    eq,
    has,
    increase,
    names,
    one_of,
    rate,
    rate_of_count,
    rate_of_sum,
    select,
)

SLICE_SECONDS = 300
"""Twenty scrapes at 15 s and five at a minute: a rate over fewer moves by more than a slice may."""
SUSTAINED, BASELINE = "1h", "1d"
HIGHER_IS_BETTER = ("throughput", "bus_bandwidth")
LOWER_IS_BETTER = ("step_latency", "gradient_sync", "cost")
BASELINE_SLOS = (*HIGHER_IS_BETTER, *LOWER_IS_BETTER)
"""Objectives whose slices are held against the job's own baseline."""
_OTHER_RATIO = 1.2
"""Tokens a step times ranks that differ by more are another configuration of the job."""
_PAUSES = ("checkpoint", "eval")

_JOB = (CLUSTER, JOB_ID)
_SLICE_LABELS = (*_JOB, ledger.SLO)
_JOB_JOIN = f"on ({names(*_JOB)})"
_SLICE_JOIN = f"on ({names(*_SLICE_LABELS)})"


def name_objective(expression: str, slo: str) -> str:
    """PromQL with the objective as a label."""
    return f'label_replace({expression}, "{ledger.SLO.name}", "{slo}", "", "")'


# All ranks and phases are read once: the quantities below are quotients of these.


def _stepping() -> str:
    """Seconds a second that the ranks of a job spend in steps, without checkpoints and so on."""
    phases = tuple(phase for phase in PHASE.values if phase not in _PAUSES)
    return by("sum", select(recorded.JOB_PHASES, one_of(PHASE, *phases)), *_JOB)


def _values(rules: Parameters) -> dict[str, str]:
    slices, hour = rules.windows.cover(SLICE_SECONDS), rules.windows.cover(3600)
    stepping = _stepping()
    steps = by("sum", rate(training.STEPS, slices), *_JOB)
    tokens = by("sum", rate(training.TOKENS, slices), *_JOB)
    ranks = by("count", by("group", select(training.RANK_INFO), *_JOB, RANK), *_JOB)
    synced = by("sum", select(recorded.JOB_PHASES, eq(PHASE, "sync")), *_JOB)
    bus = by("avg", f"avg_over_time({select(training.BUS_RATE)}[{slices}])", *_JOB, KIND)
    tokens_of_hour = by("sum", rate(training.TOKENS, hour), *_JOB)
    return {
        "throughput": f"({tokens} > 0) / ({stepping} > 0)",
        "step_latency": f"{stepping} / ({steps} > 0)",
        "gradient_sync": f"clamp_min({synced} / ({stepping} > 0), {rules.limits.min_sync_ratio:g})",
        # The kind that moves most of the bytes: a broadcast of a few values says nothing.
        "bus_bandwidth": by("max", bus, *_JOB) + " > 0",
        "cost": f"{ranks} / ({tokens_of_hour} > 0)",
    }


def _value(rules: Parameters) -> str:
    return "\nor\n".join(name_objective(text, slo) for slo, text in _values(rules).items())


def _sustained(rules: Parameters) -> str:
    value = select(recorded.SLICE_VALUE)
    enough = f"count_over_time({value}[{SUSTAINED}]) >= {rules.limits.min_baseline_slices}"
    return f"quantile_over_time(0.5, {value}[{SUSTAINED}]) and {enough}"


def _configuration(rules: Parameters) -> str:
    slices = rules.windows.cover(SLICE_SECONDS)
    tokens, steps = (
        by("sum", rate(each, slices), *_JOB) for each in (training.TOKENS, training.STEPS)
    )
    return (
        f"{tokens} / ({steps} > 0) * {_JOB_JOIN} {by('max', select(training.WORLD_RANKS), *_JOB)}"
    )


def _baseline(_: Parameters) -> str:
    higher = select(recorded.SLICE_SUSTAINED, one_of(ledger.SLO, *HIGHER_IS_BETTER))
    lower = select(recorded.SLICE_SUSTAINED, one_of(ledger.SLO, *LOWER_IS_BETTER))

    def best(window: str, unchanged: str) -> str:
        over = f"{select(recorded.SLICE_CONFIGURATION)}[{unchanged}]"
        other = f"max_over_time({over}) > {_OTHER_RATIO:g} * min_over_time({over})"
        best = f"max_over_time({higher}[{window}]) or min_over_time({lower}[{window}])"
        return f"({best}) unless {_JOB_JOIN} ({other})"

    # A resized job, or one with another batch or context, is held against itself as it is now.
    return f"{best(BASELINE, '25h')}\nor\n{best('3h', '4h')}"


def _ratio(_: Parameters) -> str:
    def pair(*slos: str) -> tuple[str, str]:
        return (
            select(recorded.SLICE_VALUE, one_of(ledger.SLO, *slos)),
            select(recorded.SLICE_BASELINE, one_of(ledger.SLO, *slos)),
        )

    (higher, best), (lower, least) = pair(*HIGHER_IS_BETTER), pair(*LOWER_IS_BETTER)
    return f"{higher} / {_SLICE_JOIN} ({best} > 0)\nor\n{least} / {_SLICE_JOIN} ({lower} > 0)"


def _interval(_: Parameters) -> str:
    # From checkpoint to checkpoint: neither a long gap now nor the age of the job changes it.
    over = f"{select(recorded.LAST_DURABLE)}[{BASELINE}]"
    span = f"(max_over_time({over}) - min_over_time({over}))"
    # Of a job that writes no more the interval is remembered as long as the job is seen.
    is_seen = f"and {_JOB_JOIN} {select(recorded.LAST_DURABLE)}"
    remembered = f"last_over_time({select(recorded.CHECKPOINT_INTERVAL)}[1h]) {is_seen}"
    return f"{span} / (changes({over}) > 0)\nor\n{remembered}"


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
    recorded.JOB_PHASES: lambda rules: by(
        "sum", rate(training.PHASE_SECONDS, rules.windows.cover(SLICE_SECONDS)), *_JOB, PHASE
    ),
    recorded.SLICE_VALUE: _value,
    recorded.SLICE_SUSTAINED: _sustained,
    recorded.SLICE_CONFIGURATION: _configuration,
    recorded.SLICE_BASELINE: _baseline,
    recorded.SLICE_RATIO: _ratio,
    recorded.LAST_DURABLE: by("max", select(training.LAST_CHECKPOINT), *_JOB),
    recorded.CHECKPOINT_INTERVAL: _interval,
    recorded.SLICE_BAD: _bad,
    recorded.SLICES_TOTAL: _slices_total,
    recorded.SLICES_BAD: _slices_bad,
}
