"""Series that recording rules compute of slices: which are bad, and how many there are.

Some are held against the best hour of their job, some against a limit that is the same for every
job, and some are of GPUs or of all jobs and no job's own.
"""

from lockstep_catalogue.gpu_activity import GPU_SM_ACTIVE
from lockstep_catalogue.gpu_owner import GPU_OWNER_INFO
from lockstep_catalogue.job_state import ANOMALOUS, CHECKPOINT_SECONDS
from lockstep_catalogue.labels import CLUSTER, GPU, JOB_ID, NODE, WRITING
from lockstep_catalogue.ledger import JOB_STATUS, JOBS, SLO
from lockstep_catalogue.metric import Recorded, Unit
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
from lockstep_catalogue.recorded_slices import (
    CHECKPOINT_INTERVAL,
    LAST_DURABLE,
    SLICE_LIMIT,
    SLICE_RATIO,
    SLICE_SECONDS,
)
from lockstep_catalogue.training import LOSS, NONFINITE_STEPS, RANK_INFO
from lockstep_catalogue.windows import ScrapeWindows

MAX_BLOCKING_SECONDS, MAX_BLOCKING_RATIO = 60.0, 0.02
"""A checkpoint may stop the steps for a minute and for a fiftieth of the time between two."""
MAX_INTERVALS = 3
"""Intervals of checkpoints after which the recovery point is too old: two in a row are lost."""
MIN_SM_ACTIVE_RATIO = 0.2
"""Mean activity from which on a GPU is used: a loop that waits for its input is below."""

_JOB = (CLUSTER, JOB_ID)
_OF_SLICE = (*_JOB, SLO)
_ON_JOB = f"on ({names(*_JOB)})"


def _named(expression: str, slo: str) -> str:
    return f'label_replace({expression}, "{SLO.name}", "{slo}", "", "")'


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

RECORDED = (SLICE_BAD, SLICES_TOTAL, SLICES_BAD)
