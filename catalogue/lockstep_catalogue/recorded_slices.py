"""Series that recording rules compute for slices: was a job as good as it had been itself?

A slice is the five minutes before an evaluation. Jobs differ in everything, so that a job is held
against its own best hour of the last day, and never against another job. Checkpoints and
evaluations are no slow steps: the quantities are taken over the time of the other phases. What has
no answer, such as the tokens of a job that stands still, has no slice.
"""

from lockstep_catalogue.job_watch import BUS_RATE
from lockstep_catalogue.labels import CLUSTER, JOB_ID, KIND, PHASE, RANK
from lockstep_catalogue.ledger import SLO
from lockstep_catalogue.metric import Recorded, Unit
from lockstep_catalogue.promql import (
    by,
    eq,
    names,
    one_of,
    rate,
    select,
)
from lockstep_catalogue.training import (
    LAST_CHECKPOINT,
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


RECORDED = (
    JOB_PHASES,
    SLICE_VALUE,
    SLICE_SUSTAINED,
    SLICE_BASELINE,
    SLICE_RATIO,
    LAST_DURABLE,
    CHECKPOINT_INTERVAL,
    SLICE_LIMIT,
)
