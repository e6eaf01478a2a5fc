"""Series that recording rules compute: the phases of each rank's step, and its lateness.

In synchronous training all ranks leave a step together, so step times name nobody. A slow rank
shows in its own work against the median of its group, and in its lateness: how much shorter than
the others' its synchronisation is (straggler theory: docs/decisions/0002-lateness.md).

A group is what does the same work and ends together: the ranks of one pipeline stage, or all ranks
of a job without stages. All its ranks have the same step, so that the difference of their waiting,
of every kind, is the difference of their own work. Stages differ by design, and are compared with
themselves over time only.
"""

from lockstep_catalogue.job_state import MODEL_FLOPS, PEAK_FLOPS
from lockstep_catalogue.labels import (
    CLUSTER,
    JOB_ID,
    NODE,
    OWN_WORK_PHASES,
    PHASE,
    PP,
    RANK,
)
from lockstep_catalogue.metric import Recorded, Unit
from lockstep_catalogue.promql import (
    by,
    eq,
    has,
    lower_median_by,
    median_by,
    names,
    one_of,
    rate,
    select,
)
from lockstep_catalogue.training import LAST_PROGRESS, PHASE_SECONDS, RANK_INFO, STEPS, TOKENS
from lockstep_catalogue.windows import ScrapeWindows

_MIN_STEPS = 4  # with fewer in the live window, the long window applies
_RATE_SECONDS = 60

_JOB = (CLUSTER, JOB_ID)
_RANK = (*_JOB, RANK)
_GROUP = (*_JOB, PP)
_PLACED_RANK = (*_JOB, NODE, PP, RANK)
_ON_JOB, _ON_RANK, _ON_GROUP = (f"on ({names(*labels)})" for labels in (_JOB, _RANK, _GROUP))


def _newest_placement(_: ScrapeWindows) -> str:
    # Two agents report a rank that has moved until its job leaves: the newer progress counts.
    # ``group`` makes ties harmless: a join that meets two series of a rank fails the whole rule.
    progress = f"on ({names(*_RANK)}, instance) group_left () {select(LAST_PROGRESS)}"
    newest = f"topk by ({names(*_RANK)}) (1, {select(RANK_INFO)} * {progress})"
    return by("group", newest, *_PLACED_RANK)


PLACEMENT = Recorded(
    name="cluster_job_id_node_pp_rank:lockstep_train_rank_info:newest",
    unit=Unit.NONE,
    labels=_PLACED_RANK,
    help="Where a rank runs and which pipeline stage it belongs to, always 1; one series a rank.",
    expression=_newest_placement,
)


def _per_step(window: str, steps_guard: str) -> str:
    seconds = by("sum", rate(PHASE_SECONDS, window), *_RANK, PHASE)
    steps = steps_guard.format(steps=by("sum", rate(STEPS, window), *_RANK))
    placed = f"group_left ({names(NODE, PP)})"
    return f"{seconds} / {_ON_RANK} {placed} (({steps}) * {_ON_RANK} {placed} {select(PLACEMENT)})"


def _phase_per_step(windows: ScrapeWindows) -> str:
    limit = f"{_MIN_STEPS / windows.live_seconds:.4g}"
    live = _per_step(windows.live, f"{{steps}} > {limit}")
    return f"{live}\nor\n{_per_step(windows.long, f'({{steps}} > 0) <= {limit}')}"


PHASE_PER_STEP = Recorded(
    name="cluster_job_id_node_pp_rank_phase:lockstep_train_phase_seconds:per_step",
    unit=Unit.SECONDS,
    labels=(*_PLACED_RANK, PHASE),
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
_SYNC = by("sum", select(PHASE_PER_STEP, eq(PHASE, "sync")), *_PLACED_RANK)
LATENESS = Recorded(
    name="cluster_job_id_node_pp_rank:lockstep_train_lateness_seconds:per_step",
    unit=Unit.SECONDS,
    labels=_PLACED_RANK,
    help="How much less than the rank of its group that waits most the rank waits, per step.",
    expression=lambda _: f"{by('max', _SYNC, *_GROUP)} - {_ON_GROUP} group_right () {_SYNC}",
)
LATENESS_RATIO = Recorded(
    name="cluster_job_id_node_pp_rank:lockstep_train_lateness:ratio",
    unit=Unit.RATIO,
    labels=_PLACED_RANK,
    help="Lateness beyond the median of its group as a share of the step: its cost to all ranks.",
    expression=lambda _: (
        f"({select(LATENESS)} - {_ON_GROUP} group_left ()"
        f" {lower_median_by(select(LATENESS), *_GROUP)})"
        f" / {_ON_JOB} group_left () {select(STEP_MEAN)}"
    ),
)
_OF_NODE = (*_JOB, NODE)
NODE_LATENESS_RATIO = Recorded(
    name="cluster_job_id_node:lockstep_train_lateness:min_ratio",
    unit=Unit.RATIO,
    labels=_OF_NODE,
    help="Lateness ratio of the least late rank of a node that has several ranks of the job.",
    expression=lambda _: (
        f"{by('min', select(LATENESS_RATIO), *_OF_NODE)}"
        f" and on ({names(*_OF_NODE)}) {by('count', select(LATENESS_RATIO), *_OF_NODE)} > 1"
    ),
)
_OWN = select(PHASE_PER_STEP, one_of(PHASE, *OWN_WORK_PHASES))
EXCESS = Recorded(
    name="cluster_job_id_node_pp_rank_phase:lockstep_train_excess_seconds:per_step",
    unit=Unit.SECONDS,
    labels=(*_PLACED_RANK, PHASE),
    help="Own work of the rank beyond the median of its group, by phase, per step.",
    expression=lambda _: (
        f"{_OWN} - on ({names(*_GROUP, PHASE)}) group_left () {median_by(_OWN, *_GROUP, PHASE)}"
    ),
)
_OWN_OF_STAGES = select(PHASE_PER_STEP, one_of(PHASE, *OWN_WORK_PHASES), has(PP))
STAGE_OWN = Recorded(
    name="cluster_job_id_pp_phase:lockstep_train_stage_own_seconds:per_step",
    unit=Unit.SECONDS,
    labels=(*_GROUP, PHASE),
    help="Own work of the mean rank of a pipeline stage by phase, per step.",
    expression=lambda _: by("avg", _OWN_OF_STAGES, *_GROUP, PHASE),
)
STAGE_EXCESS = Recorded(
    name="cluster_job_id_pp_phase:lockstep_train_stage_excess_seconds:per_step",
    unit=Unit.SECONDS,
    labels=(*_GROUP, PHASE),
    help="Own work of a stage's mean rank beyond the median of the stages, by phase, per step.",
    expression=lambda _: (
        f"{select(STAGE_OWN)} - on ({names(*_JOB, PHASE)}) group_left ()"
        f" {lower_median_by(select(STAGE_OWN), *_JOB, PHASE)}"
    ),
)
STAGE_EXCESS_RATIO = Recorded(
    name="cluster_job_id_pp:lockstep_train_stage_excess:ratio",
    unit=Unit.RATIO,
    labels=_GROUP,
    help="Own work of a stage beyond the median of the stages as a share of the step.",
    expression=lambda _: (
        f"{by('sum', select(STAGE_EXCESS), *_GROUP)} / {_ON_JOB} group_left () {select(STEP_MEAN)}"
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

_MIN_STANDING_SECONDS = 20
"""And one scrape and a half: that old the newest word of a rank that moves may be."""
_STANDING_STEPS = 3
"""Mean steps without progress of a rank, from which on its job stands."""


def _standing(windows: ScrapeWindows) -> str:
    since = f"(time() - {by('min', select(LAST_PROGRESS), *_JOB)})"
    least_seconds = max(_MIN_STANDING_SECONDS, 3 * windows.scrape_seconds // 2)
    # A job that stands may have no mean step: too few steps end in any window.
    return (
        f"({since} > {least_seconds})\nunless on ({names(*_JOB)})\n"
        f"({since} < on ({names(*_JOB)}) {_STANDING_STEPS} * {select(STEP_MEAN)})"
    )


STANDING = Recorded(
    name="cluster_job_id:lockstep_train_standing_seconds:max",
    unit=Unit.SECONDS,
    labels=_JOB,
    help="Time since the last progress of the rank that stands longest, where that is longer than "
    "a scrape and three mean steps: who is late then says nothing about who is slow.",
    expression=_standing,
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

RECORDED = (
    PLACEMENT,
    PHASE_PER_STEP,
    STEP_MEAN,
    LATENESS,
    LATENESS_RATIO,
    NODE_LATENESS_RATIO,
    EXCESS,
    STANDING,
    UNOBSERVED,
    STAGE_OWN,
    STAGE_EXCESS,
    STAGE_EXCESS_RATIO,
    TOKENS_RATE,
    MFU,
)
