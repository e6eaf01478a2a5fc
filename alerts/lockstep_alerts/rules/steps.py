"""PromQL of the phases of each rank's step, and of its lateness.

In synchronous training all ranks leave a step together, so step times name nobody. A slow rank
shows in its own work against the median of its group, and in its lateness: how much shorter than
the others' its synchronisation is (straggler theory: docs/decisions/0002-lateness.md).

A group is what does the same work and ends together: the ranks of one pipeline stage, or all ranks
of a job without stages. All its ranks have the same step, so that the difference of their waiting,
of every kind, is the difference of their own work. Stages differ by design, and are compared with
themselves over time only.
"""

from lockstep_alerts.rules.parameters import Expressions, Parameters
from lockstep_catalogue.labels import (
    CLUSTER,
    JOB_ID,
    NODE,
    OWN_WORK_PHASES,
    PHASE,
    PP,
    RANK,
)
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
from lockstep_catalogue.recorded import (
    EXCESS,
    LATENESS,
    LATENESS_RATIO,
    MFU,
    NODE_LATENESS_RATIO,
    PHASE_PER_STEP,
    PLACEMENT,
    STAGE_EXCESS,
    STAGE_EXCESS_RATIO,
    STAGE_OWN,
    STANDING,
    STEP_MEAN,
    TOKENS_RATE,
    UNOBSERVED,
)
from lockstep_catalogue.training import (
    LAST_PROGRESS,
    MODEL_FLOPS,
    PEAK_FLOPS,
    PHASE_SECONDS,
    RANK_INFO,
    STEPS,
    TOKENS,
)

_MIN_STEPS = 4  # with fewer in the live window, the long window applies
_RATE_SECONDS = 60

_JOB = (CLUSTER, JOB_ID)
_RANK = (*_JOB, RANK)
_GROUP = (*_JOB, PP)
_PLACED_RANK = (*_JOB, NODE, PP, RANK)
_ON_JOB, _ON_RANK, _ON_GROUP = (f"on ({names(*labels)})" for labels in (_JOB, _RANK, _GROUP))


def _newest_placement(_: Parameters) -> str:
    # Two agents report a rank that has moved until its job leaves: the newer progress counts.
    # ``group`` makes ties harmless: a join that meets two series of a rank fails the whole rule.
    progress = f"on ({names(*_RANK)}, instance) group_left () {select(LAST_PROGRESS)}"
    newest = f"topk by ({names(*_RANK)}) (1, {select(RANK_INFO)} * {progress})"
    return by("group", newest, *_PLACED_RANK)


def _per_step(window: str, steps_guard: str) -> str:
    seconds = by("sum", rate(PHASE_SECONDS, window), *_RANK, PHASE)
    steps = steps_guard.format(steps=by("sum", rate(STEPS, window), *_RANK))
    placed = f"group_left ({names(NODE, PP)})"
    return f"{seconds} / {_ON_RANK} {placed} (({steps}) * {_ON_RANK} {placed} {select(PLACEMENT)})"


def _phase_per_step(rules: Parameters) -> str:
    limit = f"{_MIN_STEPS / rules.windows.live_seconds:.4g}"
    live = _per_step(rules.windows.live, f"{{steps}} > {limit}")
    return f"{live}\nor\n{_per_step(rules.windows.long, f'({{steps}} > 0) <= {limit}')}"


_SYNC = by("sum", select(PHASE_PER_STEP, eq(PHASE, "sync")), *_PLACED_RANK)
_OF_NODE = (*_JOB, NODE)
_OWN = select(PHASE_PER_STEP, one_of(PHASE, *OWN_WORK_PHASES))
_OWN_OF_STAGES = select(PHASE_PER_STEP, one_of(PHASE, *OWN_WORK_PHASES), has(PP))


def _standing(rules: Parameters) -> str:
    since = f"(time() - {by('min', select(LAST_PROGRESS), *_JOB)})"
    # And one scrape and a half: that old the newest word of a rank that moves may be.
    least_seconds = max(rules.limits.standing.seconds, 3 * rules.windows.scrape_seconds // 2)
    # A job that stands may have no mean step: too few steps end in any window.
    return (
        f"({since} > {least_seconds})\nunless on ({names(*_JOB)})\n"
        f"({since} < on ({names(*_JOB)}) {rules.limits.standing_steps:g} * {select(STEP_MEAN)})"
    )


def _unobserved(rules: Parameters) -> str:
    by_phase = (*_JOB, PHASE)
    on_job = f"on ({names(*_JOB)}) group_left ()"
    several = f"on ({names(*_JOB)}) ({by('count', _SYNC, *_JOB)} > 1)"
    mean = select(STEP_MEAN)
    is_sync = select(PHASE_PER_STEP, eq(PHASE, "sync"))
    is_other = select(PHASE_PER_STEP, eq(PHASE, "other"))
    waited, unclaimed = by("max", is_sync, *by_phase), by("avg", is_other, *by_phase)
    return (
        f"(({waited} / {on_job} {mean}) < {rules.limits.min_wait_ratio:g} and {several})\n"
        f"or\n({unclaimed} / {on_job} {mean}) > {rules.limits.max_other_ratio:g}"
    )


EXPRESSIONS: Expressions = {
    PLACEMENT: _newest_placement,
    PHASE_PER_STEP: _phase_per_step,
    STEP_MEAN: by("avg", by("sum", select(PHASE_PER_STEP), *_RANK), *_JOB),
    LATENESS: f"{by('max', _SYNC, *_GROUP)} - {_ON_GROUP} group_right () {_SYNC}",
    LATENESS_RATIO: (
        f"({select(LATENESS)} - {_ON_GROUP} group_left ()"
        f" {lower_median_by(select(LATENESS), *_GROUP)})"
        f" / {_ON_JOB} group_left () {select(STEP_MEAN)}"
    ),
    NODE_LATENESS_RATIO: (
        f"{by('min', select(LATENESS_RATIO), *_OF_NODE)}"
        f" and on ({names(*_OF_NODE)}) {by('count', select(LATENESS_RATIO), *_OF_NODE)} > 1"
    ),
    EXCESS: (
        f"{_OWN} - on ({names(*_GROUP, PHASE)}) group_left () {median_by(_OWN, *_GROUP, PHASE)}"
    ),
    STAGE_OWN: by("avg", _OWN_OF_STAGES, *_GROUP, PHASE),
    STAGE_EXCESS: (
        f"{select(STAGE_OWN)} - on ({names(*_JOB, PHASE)}) group_left ()"
        f" {lower_median_by(select(STAGE_OWN), *_JOB, PHASE)}"
    ),
    STAGE_EXCESS_RATIO: (
        f"{by('sum', select(STAGE_EXCESS), *_GROUP)} / {_ON_JOB} group_left () {select(STEP_MEAN)}"
    ),
    TOKENS_RATE: lambda rules: by("sum", rate(TOKENS, rules.windows.cover(_RATE_SECONDS)), *_JOB),
    MFU: lambda rules: (
        f"{by('sum', rate(MODEL_FLOPS, rules.windows.cover(_RATE_SECONDS)), *_JOB)}"
        f" / {by('sum', select(PEAK_FLOPS), *_JOB)}"
    ),
    STANDING: _standing,
    UNOBSERVED: _unobserved,
}
