"""Series that recording rules compute for slices: was a job as good as it had been itself?

A slice is the five minutes before an evaluation. Jobs differ in everything, so that a job is held
against its own best hour of the last day, and never against another job. Checkpoints and
evaluations are no slow steps: the quantities are taken over the time of the other phases. What has
no answer, such as the tokens of a job that stands still, has no slice.
"""

from lockstep_catalogue.gpu_activity import GPU_SM_ACTIVE
from lockstep_catalogue.gpu_owner import GPU_OWNER_INFO
from lockstep_catalogue.job_state import ANOMALOUS, CHECKPOINT_SECONDS
from lockstep_catalogue.job_watch import BUS_RATE
from lockstep_catalogue.labels import CLUSTER, GPU, JOB_ID, KIND, NODE, PHASE, RANK, WRITING
from lockstep_catalogue.ledger import JOB_STATUS, JOBS, SLO
from lockstep_catalogue.metric import Recorded, Unit
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
from lockstep_catalogue.training import (
    LAST_CHECKPOINT,
    LOSS,
    NONFINITE_STEPS,
    PHASE_SECONDS,
    RANK_INFO,
    STEPS,
    TOKENS,
)
from lockstep_catalogue.windows import ScrapeWindows

SLICE_SECONDS = 300
"""Twenty scrapes at 15 s and five at a minute: a rate over fewer moves by more than a slice may."""
SUSTAINED, BASELINE = "1h", "1d"
MIN_SUSTAINED_SLICES = 30
"""Evaluations, once a minute, that an hour must hold to be a baseline: a start is no best hour."""
HIGHER_IS_BETTER = ("throughput", "bus_bandwidth")
LOWER_IS_BETTER = ("step_latency", "gradient_sync", "cost")
OF_BASELINE = (*HIGHER_IS_BETTER, *LOWER_IS_BETTER)
"""Objectives whose slices are held against the job's own baseline."""
MAX_BLOCKING_SECONDS, MAX_BLOCKING_RATIO = 60.0, 0.02
"""A checkpoint may stop the steps for a minute and for a fiftieth of the time between two."""
MAX_INTERVALS = 3
"""Intervals of checkpoints after which the recovery point is too old: two in a row are lost."""
MIN_SM_ACTIVE_RATIO = 0.2
"""Mean activity from which on a GPU is used: a loop that waits for its input is below."""
_MIN_SYNC_RATIO = 0.05  # a share of the step that is not worth a ticket, whatever it was before
_PAUSES = ("checkpoint", "eval")

NOTHING_DECLARED = "vector(0) > 0"
"""PromQL without a sample, of series whose values the alert spec declares."""

_JOB = (CLUSTER, JOB_ID)
_OF_SLICE = (*_JOB, SLO)
_ON_JOB = f"on ({names(*_JOB)})"
_ON_SLICE = f"on ({names(*_OF_SLICE)})"


def _named(expression: str, slo: str) -> str:
    return f'label_replace({expression}, "{SLO.name}", "{slo}", "", "")'


# All ranks and phases are read once: the quantities below are quotients of these.
JOB_PHASES = Recorded(
    name="cluster_job_id_phase:lockstep_train_phase_seconds:rate5m",
    unit=Unit.NONE,
    labels=(*_JOB, PHASE),
    help="Seconds a second that the ranks of a job spend in a phase together, over five minutes.",
    expression=lambda windows: by(
        "sum", rate(PHASE_SECONDS, windows.at_least(SLICE_SECONDS)), *_JOB, PHASE
    ),
)


def _stepping() -> str:
    """Seconds a second that the ranks of a job spend in steps, without checkpoints and so on."""
    phases = tuple(phase for phase in PHASE.values if phase not in _PAUSES)
    return by("sum", select(JOB_PHASES, one_of(PHASE, *phases)), *_JOB)


def _values(windows: ScrapeWindows) -> dict[str, str]:
    slices, hour = windows.at_least(SLICE_SECONDS), windows.at_least(3600)
    stepping = _stepping()
    steps = by("sum", rate(STEPS, slices), *_JOB)
    tokens = by("sum", rate(TOKENS, slices), *_JOB)
    ranks = by("count", by("group", select(RANK_INFO), *_JOB, RANK), *_JOB)
    synced = by("sum", select(JOB_PHASES, eq(PHASE, "sync")), *_JOB)
    bus = by("avg", f"avg_over_time({select(BUS_RATE)}[{slices}])", *_JOB, KIND)
    tokens_of_hour = by("sum", rate(TOKENS, hour), *_JOB)
    return {
        "throughput": f"({tokens} > 0) / ({stepping} / {ranks} > 0)",
        "step_latency": f"{stepping} / ({steps} > 0)",
        "gradient_sync": f"clamp_min({synced} / ({stepping} > 0), {_MIN_SYNC_RATIO:g})",
        # The kind that moves most of the bytes: a broadcast of a few values says nothing.
        "bus_bandwidth": by("max", bus, *_JOB) + " > 0",
        "cost": f"{ranks} / ({tokens_of_hour} > 0)",
    }


def _value(windows: ScrapeWindows) -> str:
    return "\nor\n".join(_named(text, slo) for slo, text in _values(windows).items())


SLICE_VALUE = Recorded(
    name="cluster_job_id_slo:lockstep_train_slice:value5m",
    unit=Unit.NONE,
    labels=_OF_SLICE,
    help="What an objective measures of a job in the last five minutes: tokens a second of "
    "stepping, seconds a step, share of the step in sync, bytes a second on the bus; of cost "
    "GPU-seconds a token over an hour.",
    expression=_value,
)


def _sustained(_: ScrapeWindows) -> str:
    value = select(SLICE_VALUE)
    enough = f"count_over_time({value}[{SUSTAINED}]) >= {MIN_SUSTAINED_SLICES}"
    return f"quantile_over_time(0.5, {value}[{SUSTAINED}]) and {enough}"


SLICE_SUSTAINED = Recorded(
    name="cluster_job_id_slo:lockstep_train_slice:median1h",
    unit=Unit.NONE,
    labels=_OF_SLICE,
    help="Median of a job's slices of the last hour, where half an hour of them exists.",
    expression=_sustained,
)


def _baseline(_: ScrapeWindows) -> str:
    higher = select(SLICE_SUSTAINED, one_of(SLO, *HIGHER_IS_BETTER))
    lower = select(SLICE_SUSTAINED, one_of(SLO, *LOWER_IS_BETTER))
    return f"max_over_time({higher}[{BASELINE}])\nor\nmin_over_time({lower}[{BASELINE}])"


SLICE_BASELINE = Recorded(
    name="cluster_job_id_slo:lockstep_train_slice:best1d",
    unit=Unit.NONE,
    labels=_OF_SLICE,
    help="A job's best hour of the last day: what its slices are held against.",
    expression=_baseline,
)


def _ratio(_: ScrapeWindows) -> str:
    def pair(*slos: str) -> tuple[str, str]:
        return (select(SLICE_VALUE, one_of(SLO, *slos)), select(SLICE_BASELINE, one_of(SLO, *slos)))

    (higher, best), (lower, least) = pair(*HIGHER_IS_BETTER), pair(*LOWER_IS_BETTER)
    return f"{higher} / {_ON_SLICE} ({best} > 0)\nor\n{least} / {_ON_SLICE} ({lower} > 0)"


SLICE_RATIO = Recorded(
    name="cluster_job_id_slo:lockstep_train_slice:ratio",
    unit=Unit.RATIO,
    labels=_OF_SLICE,
    help="How good the last five minutes of a job are against its best hour: 0.5 is half as good.",
    expression=_ratio,
)
LAST_DURABLE = Recorded(
    name="cluster_job_id:lockstep_train_last_durable_checkpoint_timestamp_seconds:max",
    unit=Unit.TIMESTAMP_SECONDS,
    labels=_JOB,
    help="Wall clock at which the newest durable checkpoint of a job was complete.",
    expression=lambda _: by("max", select(LAST_CHECKPOINT), *_JOB),
)


def _interval(_: ScrapeWindows) -> str:
    # From checkpoint to checkpoint: neither a long gap now nor the age of the job changes it.
    over = f"{select(LAST_DURABLE)}[{BASELINE}]"
    span = f"(max_over_time({over}) - min_over_time({over}))"
    return f"{span} / (changes({over}) > 0)"


CHECKPOINT_INTERVAL = Recorded(
    name="cluster_job_id:lockstep_train_checkpoint_interval_seconds:mean1d",
    unit=Unit.SECONDS,
    labels=_JOB,
    help="Mean time between the durable checkpoints of a job in the last day; absent before two.",
    expression=_interval,
)


def _of_spec(_: ScrapeWindows) -> str:
    return NOTHING_DECLARED


SLICE_LIMIT = Recorded(
    name="slo:lockstep_train_slice:min_ratio",
    unit=Unit.RATIO,
    labels=(SLO,),
    help="How good a slice must be against the best hour of its job, as the alert spec declares.",
    expression=_of_spec,
)


def _of_checkpoints(windows: ScrapeWindows) -> str:
    hour = windows.at_least(3600)
    blocking = eq(WRITING, "blocking")
    seconds = by("sum", rate_of_sum(CHECKPOINT_SECONDS, hour, blocking), *_JOB)
    number = by("sum", rate_of_count(CHECKPOINT_SECONDS, hour, blocking), *_JOB)
    by_node = by("max", rate_of_count(CHECKPOINT_SECONDS, hour, blocking), *_JOB)
    most = f"clamp_max({MAX_BLOCKING_RATIO:g} / ({by_node} > 0), {MAX_BLOCKING_SECONDS:g})"
    return f"{seconds} / ({number} > 0) > bool {_ON_JOB} {most}"


def _of_recovery(_: ScrapeWindows) -> str:
    age = f"time() - {select(LAST_DURABLE)}"
    return f"{age} > bool {_ON_JOB} ({MAX_INTERVALS} * {select(CHECKPOINT_INTERVAL)})"


def _of_loss(windows: ScrapeWindows) -> str:
    jobs = f"0 * {by('count', select(LOSS), *_JOB)}"
    odd = by("sum", select(ANOMALOUS), *_JOB)
    grown = by("sum", increase(NONFINITE_STEPS, windows.at_least(SLICE_SECONDS)), *_JOB)
    return f"(({odd} or {jobs}) + {_ON_JOB} ({grown} or {jobs}) and {_ON_JOB} {jobs}) > bool 0"


def _bad(windows: ScrapeWindows) -> str:
    relative = f"{select(SLICE_RATIO)} < bool on ({SLO.name}) group_left () {select(SLICE_LIMIT)}"
    absolute = {
        "checkpoint_blocking": _of_checkpoints(windows),
        "recovery_point": _of_recovery(windows),
        "loss_convergence": _of_loss(windows),
    }
    return "\nor\n".join((relative, *(_named(text, slo) for slo, text in absolute.items())))


SLICE_BAD = Recorded(
    name="cluster_job_id_slo:lockstep_train_slice:bad",
    unit=Unit.NONE,
    labels=_OF_SLICE,
    help="1 where the last five minutes of a job do not meet an objective, else 0; absent where "
    "nothing can be said.",
    expression=_bad,
)
_ALLOCATED = (CLUSTER, NODE, GPU)


def _activity(windows: ScrapeWindows) -> str:
    mean = f"avg_over_time({select(GPU_SM_ACTIVE)}[{windows.at_least(SLICE_SECONDS)}])"
    # ``group``: a GPU that several jobs share, or that is split, is one GPU.
    owned = by("group", select(GPU_OWNER_INFO, has(JOB_ID)), *_ALLOCATED)
    return f"({mean} and on ({names(*_ALLOCATED)}) {owned})"


def _running() -> str:
    return by("max", f"{select(JOBS, eq(JOB_STATUS, 'running'))} > 0", CLUSTER)


def _slices_total(windows: ScrapeWindows) -> str:
    gpus = by("count", _activity(windows), CLUSTER)
    counts = (
        by("count", select(SLICE_BAD), CLUSTER, SLO),
        _named(gpus, "gpu_activity"),
        _named(_running(), "telemetry"),
    )
    return "\nor\n".join(counts)


def _slices_bad(windows: ScrapeWindows) -> str:
    activity = _activity(windows)
    idle = by("count", f"{activity} < {MIN_SM_ACTIVE_RATIO:g}", CLUSTER)
    observed = by("count", by("group", select(RANK_INFO), *_JOB), CLUSTER)
    running = _running()
    unseen = f"clamp_min({running} - on ({CLUSTER.name}) ({observed} or 0 * {running}), 0)"
    counts = (
        by("sum", select(SLICE_BAD), CLUSTER, SLO),
        _named(f"({idle} or 0 * {by('count', activity, CLUSTER)})", "gpu_activity"),
        _named(unseen, "telemetry"),
    )
    return "\nor\n".join(counts)


_HELP = "Slices of jobs, allocated GPUs and running jobs that are counted now for an objective"
SLICES_TOTAL = Recorded(
    name="cluster_slo:lockstep_train_slices:total",
    unit=Unit.NONE,
    labels=(CLUSTER, SLO),
    help=f"{_HELP}.",
    expression=_slices_total,
)
SLICES_BAD = Recorded(
    name="cluster_slo:lockstep_train_slices:bad",
    unit=Unit.NONE,
    labels=(CLUSTER, SLO),
    help=f"{_HELP} and do not meet it.",
    expression=_slices_bad,
)

RECORDED = (
    JOB_PHASES,
    SLICE_VALUE,
    SLICE_SUSTAINED,
    SLICE_BASELINE,
    SLICE_RATIO,
    LAST_DURABLE,
    CHECKPOINT_INTERVAL,
    SLICE_LIMIT,
    SLICE_BAD,
    SLICES_TOTAL,
    SLICES_BAD,
)
