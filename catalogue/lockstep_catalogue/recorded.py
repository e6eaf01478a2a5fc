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

# Four scrapes at 5 s, so that a page can follow within a minute.
LIVE_WINDOW = "20s"
LONG_WINDOW = "5m"
_MIN_STEPS_PER_SECOND = 0.2  # four steps in the live window; below, the long window applies

_JOB = (CLUSTER, JOB_ID)
_RANK = (*_JOB, RANK)
_RANK_PHASE = (*_RANK, PHASE)


def _per_step(window: str, steps_guard: str) -> str:
    seconds = by("sum", rate(PHASE_SECONDS, window), *_RANK_PHASE)
    steps = by("sum", rate(STEPS, window), *_RANK)
    return f"{seconds} / on ({names(*_RANK)}) group_left () ({steps_guard.format(steps=steps)})"


PHASE_PER_STEP = Recorded(
    name="cluster_job_id_rank_phase:lockstep_train_phase_seconds:per_step",
    unit=Unit.SECONDS,
    labels=_RANK_PHASE,
    help="Mean seconds per step by rank and phase, over 20 s or, where steps are long, 5 min.",
    expression=(
        _per_step(LIVE_WINDOW, f"{{steps}} > {_MIN_STEPS_PER_SECOND}")
        + "\nor\n"
        + _per_step(LONG_WINDOW, f"({{steps}} > 0) <= {_MIN_STEPS_PER_SECOND}")
    ),
)
STEP_MEAN = Recorded(
    name="cluster_job_id:lockstep_train_step_seconds:mean",
    unit=Unit.SECONDS,
    labels=_JOB,
    help="Mean seconds per step of the job.",
    expression=by("avg", by("sum", select(PHASE_PER_STEP), *_RANK), *_JOB),
)
_SYNC = by("sum", select(PHASE_PER_STEP, eq(PHASE, "sync")), *_RANK)
LATENESS = Recorded(
    name="cluster_job_id_rank:lockstep_train_lateness_seconds:per_step",
    unit=Unit.SECONDS,
    labels=_RANK,
    help="How much later than the earliest rank the rank arrives at the collectives, per step.",
    expression=f"{by('max', _SYNC, *_JOB)} - on ({names(*_JOB)}) group_right () {_SYNC}",
)
LATENESS_RATIO = Recorded(
    name="cluster_job_id_rank:lockstep_train_lateness:ratio",
    unit=Unit.RATIO,
    labels=_RANK,
    help="Lateness beyond the job's median as a share of the step: its cost to all ranks.",
    expression=(
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
    expression=(
        f"{_OWN} - on ({names(*_JOB, PHASE)}) group_left () {median_by(_OWN, *_JOB, PHASE)}"
    ),
)
TOKENS_RATE = Recorded(
    name="cluster_job_id:lockstep_train_tokens:rate1m",
    unit=Unit.NONE,
    labels=_JOB,
    help="Tokens per second of the job.",
    expression=by("sum", rate(TOKENS, "1m"), *_JOB),
)
MFU = Recorded(
    name="cluster_job_id:lockstep_train_mfu:ratio1m",
    unit=Unit.RATIO,
    labels=_JOB,
    help="Model FLOPs utilisation of the job: FLOPs of its tokens over the peak of its devices.",
    expression=(
        f"{by('sum', rate(MODEL_FLOPS, '1m'), *_JOB)} / {by('sum', select(PEAK_FLOPS), *_JOB)}"
    ),
)
_SPENT = by("sum", rate(GOODPUT_SECONDS, LONG_WINDOW), *_JOB)
_GOOD = by("sum", rate(GOODPUT_SECONDS, LONG_WINDOW, eq(GOODPUT, "productive")), *_JOB)
GOODPUT_RATIO = Recorded(
    name="cluster_job_id:lockstep_train_goodput:ratio5m",
    unit=Unit.RATIO,
    labels=_JOB,
    help="Share of the ranks' wall clock spent in forward, backward and optimizer.",
    expression=f"{_GOOD} / ({_SPENT} > 0)",
)

RECORDED = (
    PHASE_PER_STEP,
    STEP_MEAN,
    LATENESS,
    LATENESS_RATIO,
    EXCESS,
    TOKENS_RATE,
    MFU,
    GOODPUT_RATIO,
)
