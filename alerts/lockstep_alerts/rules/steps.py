"""PromQL of what running jobs record: steps, lateness, stalls, goodput."""

from lockstep_alerts.conditions.joins import (
    JOB_JOIN,
    JOB_LABELS,
    NODE_JOIN,
    NODE_LABELS,
    RANK_JOIN,
    RANK_LABELS,
    load_excess,
    phase_of_most_excess,
    recent,
    select_jobs_without_pages,
    select_training_jobs,
    several_clocks,
    with_cause,
)
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
from lockstep_catalogue.metric import Label, Recorded
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
from lockstep_catalogue.windows import ScrapeWindows, spelled

# Own work is not exactly in proportion to the load.
_LOAD_SLACK = 1.25
_STAGE_LABELS = (*JOB_LABELS, PP)
_STAGE_JOIN = f"on ({names(*_STAGE_LABELS)})"
# The median of half an hour is the stage's own usual work; it must have run for five minutes.
_HISTORY_SECONDS = 1800
MIN_HISTORY_SECONDS = 300


def _late_parts(rules: Parameters) -> str:
    ratio, windows = rules.limits.late_ratio, rules.windows
    late = select(recorded.LATENESS_RATIO)
    judged = f"and {select_training_jobs()}\nunless {_has_stood(windows)}"
    # Arrivals by different clocks cannot be compared.
    compared = f"unless {JOB_JOIN} ({several_clocks()})\nunless {select_jobs_without_pages()}"
    # By half: the ranks of a slow node are late by about the same, and must not be split into
    # some that are named with their node and some that are named by themselves.
    whole_node = f"{NODE_JOIN} ({select(recorded.NODE_LATENESS_RATIO)} > {ratio / 2:g})"
    ranks = (
        f"{late} > {ratio:g}\nand {RANK_JOIN} ({_explained_by_own_work(ratio, RANK_LABELS)})\n"
        f"unless {whole_node}\nunless {_explained_by_load()}"
    )
    nodes = (
        f"{by('max', late, *NODE_LABELS)} > {ratio:g}\nand {whole_node}\n"
        f"and {NODE_JOIN} ({_explained_by_own_work(ratio, NODE_LABELS)})"
    )
    excess, stage_excess = recorded.EXCESS, recorded.STAGE_EXCESS
    placement = select(recorded.PLACEMENT)
    # A join that meets a stage of several ranks, of any job, would fail the rule for all jobs.
    single = f"{placement} and {_STAGE_JOIN} {by('count', placement, *_STAGE_LABELS)} == 1"
    on_rank = f"{_STAGE_JOIN} group_left ({names(RANK, NODE)}) ({single})"
    # The phase of late units alone: that of all ranks took as long as all the rest.
    is_late = f"{late} > {ratio:g}"
    parts = {
        "rank": _add_phase(ranks, RANK_LABELS, windows, excess, is_late),
        "node": _add_phase(nodes, NODE_LABELS, windows, excess, is_late),
        "stage": f"{_add_phase(_slowed_stages(rules), _STAGE_LABELS, windows, stage_excess)}"
        f" * {on_rank}",
    }
    rank, node, stage = (with_cause(cause, text) for cause, text in parts.items())
    return f"(({rank}\nor\n{node})\n{compared}\nor\n{stage})\n{judged}"


def _add_phase(
    late: str, labels: tuple[Label, ...], windows: ScrapeWindows, excess: Recorded, of: str = ""
) -> str:
    phase = phase_of_most_excess(windows, excess, *labels, of=of)
    return f"({late})\n* on ({names(*labels)}) group_left ({PHASE.name}) {phase}"


def _slowed_stages(rules: Parameters) -> str:
    """Stages without replicas that have become heavier than they were, and the others have not."""
    ratio = select(recorded.STAGE_EXCESS_RATIO)
    usual = f"quantile_over_time(0.5, {ratio}[{rules.windows.cover(_HISTORY_SECONDS)}])"
    before = f"{ratio} offset {rules.windows.cover(MIN_HISTORY_SECONDS)}"
    return f"({ratio} - {usual}) > {rules.limits.late_stage_ratio:g} and {_STAGE_JOIN} {before}"


def _has_stood(windows: ScrapeWindows) -> str:
    """Filter for the right side of ``unless``: jobs that stand still, or did a moment ago.

    The step that stood is in the windows of the means afterwards, on whichever rank.
    """
    stood = f"present_over_time({select(recorded.STANDING)}[{spelled(2 * windows.live_seconds)}])"
    hung = f"present_over_time({select(training.HANG_FIRST)}[{windows.long}])"
    return f"{JOB_JOIN} ({stood} or {by('group', hung, *JOB_LABELS)})"


def _explained_by_own_work(above_ratio: float, labels: tuple[Label, ...]) -> str:
    """Units whose own work beyond the group's median is half of this share of the step.

    Without it a rank that writes a checkpoint for all others would be called a straggler.
    """
    excess = by("avg", by("sum", select(recorded.EXCESS), *RANK_LABELS, NODE), *labels)
    limit = f"{above_ratio / 2:g} * {select(recorded.STEP_MEAN)}"
    return f"{excess} > {JOB_JOIN} group_left () ({limit})"


def _explained_by_load() -> str:
    """Filter for the right side of ``unless``: late ranks that have as much more to do.

    A rank that costs the share r of a step works r / (1 - r) longer than the others.
    """
    late = select(recorded.LATENESS_RATIO)
    excess = by("max", load_excess(*RANK_LABELS), *RANK_LABELS)
    return f"{RANK_JOIN} ({late} / (1 - {late}) < {RANK_JOIN} {_LOAD_SLACK:g} * {excess})"


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


def _per_step(window: str, steps_guard: str) -> tuple[str, str]:
    # Of two nodes that report a rank, which has moved, the one where it goes on counts.
    seconds = by("max", rate(training.PHASE_SECONDS, window), *_RANK, PHASE)
    steps = steps_guard.format(steps=by("max", rate(training.STEPS, window), *_RANK))
    return seconds, f"({steps})"


def _phase_per_step(rules: Parameters) -> str:
    seconds, steps = _per_step(rules.windows.live, f"{{steps}} > {_least_rate(rules):.4g}")
    placement = select(recorded.PLACEMENT)
    placed = f"* {_RANK_JOIN} group_left ({names(NODE, PP)})"
    series = recorded.LONG_PHASE_PER_STEP
    long = recent(series, rules.windows, series.every_seconds)
    # Joined by rank first: a second join of all phases took a quarter of the rule.
    live = f"{seconds} {placed} ({placement} / {_RANK_JOIN} group_left () {steps})"
    return f"{live}\nor\n{long} {placed} {placement}"


def _long_phase_per_step(rules: Parameters) -> str:
    few = f"{_MIN_STEPS / 300:.4g}"
    # Twice: a rank whose steps grow longer has its mean before the live window has too few.
    most = f"{2 * _least_rate(rules):.4g}"
    ratios = (
        _per_step(rules.windows.long, f"({{steps}} > {few}) <= {most}"),
        _per_step(rules.windows.cover(_LONGEST_SECONDS), f"({{steps}} > 0) <= {few}"),
    )
    return "\nor\n".join(f"{x} / {_RANK_JOIN} group_left () {steps}" for x, steps in ratios)


def _least_rate(rules: Parameters) -> float:
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
    # never moves again, and the others go on; of two ranks the one that does.
    of_node = f"on ({names(CLUSTER, NODE)})"
    progress = select(training.LAST_PROGRESS)
    at_node = f"-({progress} - {of_node} group_left () {select(agent.AGENT_TICK)})"
    return lower_median_by(f"({at_node} or time() - {progress})", *_JOB)


def _job_standing(rules: Parameters) -> str:
    age = select(recorded.PROGRESS_AGE)
    # A job that stands may have no mean step: too few steps end in any window.
    steps = f"{rules.limits.standing_steps:g} * {select(recorded.STEP_MEAN)}"
    return f"({age} > {least_seconds(rules)})\nunless {_JOB_JOIN}\n({age} < {_JOB_JOIN} {steps})"


def _unobserved(rules: Parameters) -> str:
    by_phase = (*_JOB, PHASE)
    on_job = f"on ({names(*_JOB)}) group_left ()"
    several = f"on ({names(*_JOB)}) ({by('count', select(recorded.LATENESS), *_JOB)} > 1)"
    mean = select(recorded.STEP_MEAN)
    is_sync = select(recorded.PHASE_PER_STEP, eq(PHASE, "sync"))
    is_other = select(recorded.PHASE_PER_STEP, eq(PHASE, "other"))
    # NCCL's plugin and Inspector know no phases: own work there is all but waits.
    of_nccl = select(JOB_SEEN, one_of(SEEN_BY, "plugin", "inspector"))
    waited, unclaimed = by("max", is_sync, *by_phase), by("avg", is_other, *by_phase)
    return (
        f"(({waited} / {on_job} {mean}) < {rules.limits.min_wait_ratio:g} and {several})\n"
        f"or\n(({unclaimed} / {on_job} {mean}) > {rules.limits.max_other_ratio:g}"
        f" unless on ({names(*_JOB)}) {of_nccl})"
    )


def _excess(rules: Parameters) -> str:
    # Of all ranks it would be a third of what is recorded of jobs. By half, as for whole nodes.
    late = select(recorded.LATENESS_RATIO)
    of = f"({late} > {rules.limits.late_ratio / 2:g} or topk by ({names(*_JOB)}) (1, {late}))"
    usual = median_by(_OWN, *_GROUP, PHASE)
    return f"({_OWN} and {_RANK_JOIN} {of}) - on ({names(*_GROUP, PHASE)}) group_left () {usual}"


def _straggler_wait(_: Parameters) -> str:
    # The last rank of a group is waited for by all others, for what it is late beyond the median.
    # Steps follow each other without a gap, so that a share of the step is a share of the time.
    late, on_group = select(LATENESS_RATIO), f"on ({names(*_GROUP)})"
    waiting = f"({by('count', late, *_GROUP)} - 1)"
    return by("sum", f"{by('max', late, *_GROUP)} * {on_group} {waiting}", *_JOB)


def _goodput_by_state(rules: Parameters) -> str:
    spent = by("sum", select(recorded.GOODPUT_SPENT), *_JOB, GOODPUT)
    waited = by("sum", select(recorded.GOODPUT_SPENT, eq(GOODPUT, "communication")), *_JOB)
    latest = f"avg_over_time({select(STRAGGLER_WAIT)}[{rules.windows.long}])"
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
    recorded.LATE_PART: _late_parts,
    recorded.JOB_GPUS: _job_gpus,
    recorded.JOB_SIZE: (
        f"{by('max', select(recorded.JOB_GPUS), *_JOB)}"
        f"\nor\n{by('sum', select(training.RANKS), *_JOB)}"
    ),
    recorded.JOB_STEP: by("max", select(training.STEP), *_JOB),
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
    recorded.EXCESS: _excess,
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
    recorded.GOODPUT_SPENT: lambda rules: by(
        "sum", rate(GOODPUT_SECONDS, rules.windows.long), *_JOB, GOODPUT
    ),
    GOODPUT_BY_STATE: _goodput_by_state,
    recorded.PRODUCTIVE: (
        f"{by('sum', select(GOODPUT_BY_STATE, eq(GOODPUT, 'productive')), *_JOB)}"
        f" / {_JOB_JOIN} {by('sum', select(GOODPUT_BY_STATE), *_JOB)}"
    ),
}
