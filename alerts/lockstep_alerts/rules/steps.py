"""PromQL of what running jobs record: steps, lateness, stalls, goodput."""

from lockstep_alerts.conditions.joins import recent
from lockstep_alerts.rules.losses import least_seconds
from lockstep_alerts.rules.parameters import Expressions, Parameters
from lockstep_catalogue import agent, recorded, training
from lockstep_catalogue.labels import (
    CLUSTER,
    GOODPUT,
    JOB_CLASS,
    JOB_ID,
    NODE,
    OWN_WORK_PHASES,
    PHASE,
    PP,
    PROJECT,
    QUEUE,
    RANK,
)
from lockstep_catalogue.promql import (
    by,
    eq,
    has,
    lower_median_by,
    median_by,
    names,
    none_of,
    one_of,
    rate,
    select,
)
from lockstep_catalogue.recorded import GOODPUT_BY_STATE, LATENESS_RATIO, STRAGGLER_WAIT
from lockstep_catalogue.training import GOODPUT_SECONDS, JOB_SEEN, SEEN_BY

_MIN_STEPS = 4  # with fewer in the live window, the long window applies
_RATE_SECONDS = 60
_LONGEST_SECONDS = 1200  # steps of minutes: two of ten minutes each
_KEPT = "15m"

_JOB = (CLUSTER, JOB_ID)
_OWNER_LABELS = (PROJECT, QUEUE, JOB_CLASS)
_RANK = (*_JOB, RANK)
_GROUP = (*_JOB, PP)
_PLACED_RANK = (*_JOB, NODE, PP, RANK)
_JOB_JOIN, _RANK_JOIN, _GROUP_JOIN = (f"on ({names(*labels)})" for labels in (_JOB, _RANK, _GROUP))


def _job_gpus(_: Parameters) -> str:
    whose = by(
        "group", f"last_over_time({select(training.JOB_INFO)}[{_KEPT}])", *_JOB, *_OWNER_LABELS
    )
    # Nodes of a job may disagree for a moment: a join that meets two series fails the whole rule.
    newest = f"topk by ({names(*_JOB)}) (1, {whose})"
    size = by("max", f"last_over_time({select(training.WORLD_RANKS)}[{_KEPT}])", *_JOB)
    return f"{newest} * {_JOB_JOIN} group_left () {size}"


def _job_quiet(rules: Parameters) -> str:
    limits = rules.limits
    never = select(recorded.JOB_GPUS, one_of(JOB_CLASS, *limits.classes_without_pages))
    named = limits.classes_without_pages + limits.classes_with_pages
    small = f"{select(recorded.JOB_GPUS, none_of(JOB_CLASS, *named))} < {limits.page_gpus}"
    return f"{by('max', f'0 * {never} + 2', *_JOB)}\nor\n{by('max', f'0 * ({small}) + 1', *_JOB)}"


def _newest_placement(_: Parameters) -> str:
    # Two agents report a rank that has moved until its job leaves: the newer progress counts.
    # ``group`` makes ties harmless: a join that meets two series of a rank fails the whole rule.
    progress = f"on ({names(*_RANK, NODE)}) group_left () {select(training.LAST_PROGRESS)}"
    newest = f"topk by ({names(*_RANK)}) (1, {select(training.RANK_INFO)} * {progress})"
    return by("group", newest, *_PLACED_RANK)


def _per_step(window: str, steps_guard: str) -> str:
    # Of two nodes that report a rank, which has moved, the one where it goes on counts.
    seconds = by("max", rate(training.PHASE_SECONDS, window), *_RANK, PHASE)
    steps = steps_guard.format(steps=by("max", rate(training.STEPS, window), *_RANK))
    return f"{seconds} / {_RANK_JOIN} group_left () ({steps})"


def _phase_per_step(rules: Parameters) -> str:
    live = _per_step(rules.windows.live, f"{{steps}} > {_least_rate(rules):.4g}")
    placed = f"{_RANK_JOIN} group_left ({names(NODE, PP)}) {select(recorded.PLACEMENT)}"
    series = recorded.LONG_PHASE_PER_STEP
    long = recent(series, rules.windows, series.every_seconds)
    return f"({live}\nor\n{long}) * {placed}"


def _long_phase_per_step(rules: Parameters) -> str:
    few = f"{_MIN_STEPS / 300:.4g}"
    # Twice: a rank whose steps grow longer has its mean before the live window has too few.
    most = f"{2 * _least_rate(rules):.4g}"
    of_minutes = _per_step(rules.windows.long, f"({{steps}} > {few}) <= {most}")
    longest = _per_step(rules.windows.cover(_LONGEST_SECONDS), f"({{steps}} > 0) <= {few}")
    return f"{of_minutes}\nor\n{longest}"


def _least_rate(rules: Parameters) -> float:
    """Steps a second of which the live window has enough."""
    return _MIN_STEPS / rules.windows.live_seconds


# Who exchanges parameters with a server waits for no other rank: a short wait says nothing there,
# and a slow rank costs its own updates alone.
_INDEPENDENT = select(training.SYNC_ROUNDS, eq(training.EXCHANGE, "independent"))
_SYNC = (
    f"({by('sum', select(recorded.PHASE_PER_STEP, eq(PHASE, 'sync')), *_PLACED_RANK)}"
    f" unless {_JOB_JOIN} {_INDEPENDENT})"
)
_NODE_LABELS = (*_JOB, NODE)
_OWN = select(recorded.PHASE_PER_STEP, one_of(PHASE, *OWN_WORK_PHASES))
_STAGE_OWN_WORK = select(recorded.PHASE_PER_STEP, one_of(PHASE, *OWN_WORK_PHASES), has(PP))


def _progress_age() -> str:
    # By the clock of the node itself; that of Prometheus may differ. The median rank: one that died
    # never moves again, and the others go on.
    of_node = f"on ({names(CLUSTER, NODE)})"
    progress = select(training.LAST_PROGRESS)
    at_node = f"({progress} * 0 + {of_node} group_left () {select(agent.AGENT_TICK)} - {progress})"
    return median_by(f"({at_node} or time() - {progress})", *_JOB)


def _job_standing(rules: Parameters) -> str:
    age = select(recorded.PROGRESS_AGE)
    # A job that stands may have no mean step: too few steps end in any window.
    steps = f"{rules.limits.standing_steps:g} * {select(recorded.STEP_MEAN)}"
    return f"({age} > {least_seconds(rules)})\nunless {_JOB_JOIN}\n({age} < {_JOB_JOIN} {steps})"


def _unobserved(rules: Parameters) -> str:
    by_phase = (*_JOB, PHASE)
    on_job = f"on ({names(*_JOB)}) group_left ()"
    several = f"on ({names(*_JOB)}) ({by('count', _SYNC, *_JOB)} > 1)"
    mean = select(recorded.STEP_MEAN)
    is_sync = select(recorded.PHASE_PER_STEP, eq(PHASE, "sync"))
    is_other = select(recorded.PHASE_PER_STEP, eq(PHASE, "other"))
    # NCCL's plugin knows no phases: own work there is all but waits.
    of_plugin = select(JOB_SEEN, eq(SEEN_BY, "plugin"))
    waited, unclaimed = by("max", is_sync, *by_phase), by("avg", is_other, *by_phase)
    return (
        f"(({waited} / {on_job} {mean}) < {rules.limits.min_wait_ratio:g} and {several})\n"
        f"or\n(({unclaimed} / {on_job} {mean}) > {rules.limits.max_other_ratio:g}"
        f" unless on ({names(*_JOB)}) {of_plugin})"
    )


def _straggler_wait(_: Parameters) -> str:
    # The last rank of a group is waited for by all others, for what it is late beyond the median.
    # Steps follow each other without a gap, so that a share of the step is a share of the time.
    late, on_group = select(LATENESS_RATIO), f"on ({names(*_GROUP)})"
    waiting = f"({by('count', late, *_GROUP)} - 1)"
    return by("sum", f"{by('max', late, *_GROUP)} * {on_group} {waiting}", *_JOB)


def _goodput_by_state(rules: Parameters) -> str:
    long, waiting = rules.windows.long, eq(GOODPUT, "communication")
    spent = by("sum", rate(GOODPUT_SECONDS, long), *_JOB, GOODPUT)
    waited = by("sum", rate(GOODPUT_SECONDS, long, waiting), *_JOB)
    latest = f"avg_over_time({select(STRAGGLER_WAIT)}[{long}])"
    # Waiting for a straggler is a part of what the pages call communication, never more than it.
    straggler = f"({latest} <= {_JOB_JOIN} {waited} or {_JOB_JOIN} {waited} < {_JOB_JOIN} {latest})"
    rest = f"{waited} - {_JOB_JOIN} {straggler}"
    return (
        "\nor\n".join(
            f'label_replace({expression}, "{GOODPUT.name}", "{state}", "", "")'
            for expression, state in ((straggler, "straggler_wait"), (rest, "communication"))
        )
        + f"\nor\n{spent}"
    )


EXPRESSIONS: Expressions = {
    recorded.JOB_GPUS: _job_gpus,
    recorded.JOB_QUIET: _job_quiet,
    recorded.PLACEMENT: _newest_placement,
    recorded.LONG_PHASE_PER_STEP: _long_phase_per_step,
    recorded.PHASE_PER_STEP: _phase_per_step,
    recorded.STEP_MEAN: by("avg", by("sum", select(recorded.PHASE_PER_STEP), *_RANK), *_JOB),
    recorded.LATENESS: f"{by('max', _SYNC, *_GROUP)} - {_GROUP_JOIN} group_right () {_SYNC}",
    recorded.LATENESS_RATIO: (
        f"({select(recorded.LATENESS)} - {_GROUP_JOIN} group_left ()"
        f" {lower_median_by(select(recorded.LATENESS), *_GROUP)})"
        f" / {_JOB_JOIN} group_left () {select(recorded.STEP_MEAN)}"
    ),
    recorded.NODE_LATENESS_RATIO: (
        f"{by('min', select(recorded.LATENESS_RATIO), *_NODE_LABELS)}"
        f" and on ({names(*_NODE_LABELS)})"
        f" {by('count', select(recorded.LATENESS_RATIO), *_NODE_LABELS)} > 1"
    ),
    recorded.EXCESS: (
        f"{_OWN} - on ({names(*_GROUP, PHASE)}) group_left () {median_by(_OWN, *_GROUP, PHASE)}"
    ),
    recorded.STAGE_OWN: by("avg", _STAGE_OWN_WORK, *_GROUP, PHASE),
    recorded.STAGE_EXCESS: (
        f"{select(recorded.STAGE_OWN)} - on ({names(*_JOB, PHASE)}) group_left ()"
        f" {lower_median_by(select(recorded.STAGE_OWN), *_JOB, PHASE)}"
    ),
    recorded.STAGE_EXCESS_RATIO: (
        f"{by('sum', select(recorded.STAGE_EXCESS), *_GROUP)}"
        f" / {_JOB_JOIN} group_left () {select(recorded.STEP_MEAN)}"
    ),
    recorded.TOKENS_RATE: lambda rules: by(
        "sum", rate(training.TOKENS, rules.windows.cover(_RATE_SECONDS)), *_JOB
    ),
    recorded.MFU: lambda rules: (
        f"{by('sum', rate(training.MODEL_FLOPS, rules.windows.cover(_RATE_SECONDS)), *_JOB)}"
        f" / {by('sum', select(training.PEAK_FLOPS), *_JOB)}"
    ),
    recorded.PROGRESS_AGE: _progress_age(),
    recorded.STANDING: _job_standing,
    recorded.UNOBSERVED: _unobserved,
    STRAGGLER_WAIT: _straggler_wait,
    GOODPUT_BY_STATE: _goodput_by_state,
}
