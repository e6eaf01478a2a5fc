"""Series that recording rules compute: the phases of each rank's step, and its lateness.

In synchronous training all ranks leave a step together, so step times name nobody. A slow rank
shows in its own work against the median of its group, and in its lateness: how much shorter than
the others' its synchronisation is (straggler theory: docs/decisions/0002-lateness.md).
"""

from lockstep_catalogue.job_state import GOODPUT_SECONDS, MODEL_FLOPS, PEAK_FLOPS
from lockstep_catalogue.labels import (
    CLUSTER,
    GOODPUT,
    JOB_ID,
    OWN_WORK_PHASES,
    PHASE,
    RANK,
)
from lockstep_catalogue.metric import Recorded, Unit
from lockstep_catalogue.promql import (
    by,
    eq,
    lower_median_by,
    median_by,
    names,
    one_of,
    rate,
    select,
)
from lockstep_catalogue.training import PHASE_SECONDS, STEPS, TOKENS
from lockstep_catalogue.windows import ScrapeWindows

_MIN_STEPS = 4  # with fewer in the live window, the long window applies
_RATE_SECONDS = 60

_JOB = (CLUSTER, JOB_ID)
_RANK = (*_JOB, RANK)
_RANK_PHASE = (*_RANK, PHASE)


def _per_step(window: str, steps_guard: str) -> str:
    seconds = by("sum", rate(PHASE_SECONDS, window), *_RANK_PHASE)
    steps = by("sum", rate(STEPS, window), *_RANK)
    return f"{seconds} / on ({names(*_RANK)}) group_left () ({steps_guard.format(steps=steps)})"


def _phase_per_step(windows: ScrapeWindows) -> str:
    limit = f"{_MIN_STEPS / windows.live_seconds:.4g}"
    live = _per_step(windows.live, f"{{steps}} > {limit}")
    return f"{live}\nor\n{_per_step(windows.long, f'({{steps}} > 0) <= {limit}')}"


PHASE_PER_STEP = Recorded(
    name="cluster_job_id_rank_phase:lockstep_train_phase_seconds:per_step",
    unit=Unit.SECONDS,
    labels=_RANK_PHASE,
    help="Mean seconds per step by rank and phase, over four scrapes, or 5 min for long steps.",
    expression=_phase_per_step,
)
STEP_MEAN = Recorded(
    name="cluster_job_id:lockstep_train_step_seconds:mean",
    unit=Unit.SECONDS,
    labels=_JOB,
    help="Mean seconds per step of the job.",
    expression=lambda _: by("avg", by("sum", select(PHASE_PER_STEP), *_RANK), *_JOB),
)
_SYNC = by("sum", select(PHASE_PER_STEP, eq(PHASE, "sync")), *_RANK)
LATENESS = Recorded(
    name="cluster_job_id_rank:lockstep_train_lateness_seconds:per_step",
    unit=Unit.SECONDS,
    labels=_RANK,
    help="How much later than the earliest rank the rank arrives at the collectives, per step.",
    expression=lambda _: f"{by('max', _SYNC, *_JOB)} - on ({names(*_JOB)}) group_right () {_SYNC}",
)
LATENESS_RATIO = Recorded(
    name="cluster_job_id_rank:lockstep_train_lateness:ratio",
    unit=Unit.RATIO,
    labels=_RANK,
    help="Lateness beyond the job's median as a share of the step: its cost to all ranks.",
    expression=lambda _: (
        f"({select(LATENESS)} - on ({names(*_JOB)}) group_left ()"
        f" {lower_median_by(select(LATENESS), *_JOB)})"
        f" / on ({names(*_JOB)}) group_left () {select(STEP_MEAN)}"
    ),
)
_OWN = select(PHASE_PER_STEP, one_of(PHASE, *OWN_WORK_PHASES))
EXCESS = Recorded(
    name="cluster_job_id_rank_phase:lockstep_train_excess_seconds:per_step",
    unit=Unit.SECONDS,
    labels=_RANK_PHASE,
    help="Own work of the rank beyond the median of its job, by phase, per step.",
    expression=lambda _: (
        f"{_OWN} - on ({names(*_JOB, PHASE)}) group_left () {median_by(_OWN, *_JOB, PHASE)}"
    ),
)
TOKENS_RATE = Recorded(
    name="cluster_job_id:lockstep_train_tokens:rate",
    unit=Unit.NONE,
    labels=_JOB,
    help="Tokens per second of the job.",
    expression=lambda windows: by("sum", rate(TOKENS, windows.at_least(_RATE_SECONDS)), *_JOB),
)
MFU = Recorded(
    name="cluster_job_id:lockstep_train_mfu:ratio",
    unit=Unit.RATIO,
    labels=_JOB,
    help="Model FLOPs utilisation of the job: FLOPs of its tokens over the peak of its devices.",
    expression=lambda windows: (
        f"{by('sum', rate(MODEL_FLOPS, windows.at_least(_RATE_SECONDS)), *_JOB)}"
        f" / {by('sum', select(PEAK_FLOPS), *_JOB)}"
    ),
)

MIN_WAIT_RATIO = 1e-3
"""Share of the step that some rank of a healthy group waits at least: ranks never arrive together
to a thousandth of a step, and the transfer takes its time too. Less on all ranks is not recorded,
or hidden in another phase."""
MAX_OTHER_RATIO = 0.25
"""Share of the step in no marked phase from which on it may hide a slow rank."""


def _unobserved(_: ScrapeWindows) -> str:
    by_phase = (*_JOB, PHASE)
    on_job = f"on ({names(*_JOB)}) group_left ()"
    several = f"on ({names(*_JOB)}) ({by('count', _SYNC, *_JOB)} > 1)"
    mean = select(STEP_MEAN)
    is_sync = select(PHASE_PER_STEP, eq(PHASE, "sync"))
    is_other = select(PHASE_PER_STEP, eq(PHASE, "other"))
    waited, unclaimed = by("max", is_sync, *by_phase), by("avg", is_other, *by_phase)
    return (
        f"(({waited} / {on_job} {mean}) < {MIN_WAIT_RATIO:g} and {several})\n"
        f"or\n({unclaimed} / {on_job} {mean}) > {MAX_OTHER_RATIO:g}"
    )


UNOBSERVED = Recorded(
    name="cluster_job_id_phase:lockstep_train_unobserved:ratio",
    unit=Unit.RATIO,
    labels=(*_JOB, PHASE),
    help="Share of the step in the phase for which a slow rank of the job would not show: sync "
    "where no rank waits, other where a quarter of the step or more is in no marked phase.",
    expression=_unobserved,
)


def _goodput(windows: ScrapeWindows) -> str:
    spent = by("sum", rate(GOODPUT_SECONDS, windows.long), *_JOB)
    good = by("sum", rate(GOODPUT_SECONDS, windows.long, eq(GOODPUT, "productive")), *_JOB)
    return f"{good} / ({spent} > 0)"


GOODPUT_RATIO = Recorded(
    name="cluster_job_id:lockstep_train_goodput:ratio",
    unit=Unit.RATIO,
    labels=_JOB,
    help="Share of the ranks' wall clock spent in forward, backward and optimizer.",
    expression=_goodput,
)

RECORDED = (
    PHASE_PER_STEP,
    STEP_MEAN,
    LATENESS,
    LATENESS_RATIO,
    EXCESS,
    UNOBSERVED,
    TOKENS_RATE,
    MFU,
    GOODPUT_RATIO,
)
