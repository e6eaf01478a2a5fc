"""PromQL of the parts that hold a job back: a rank, a node, or a stage of one rank."""

from lockstep_alerts.conditions.joins import (
    JOB_JOIN,
    JOB_LABELS,
    NODE_JOIN,
    NODE_LABELS,
    RANK_JOIN,
    RANK_LABELS,
    load_excess,
    phase_of_most_excess,
    select_jobs_without_pages,
    select_training_jobs,
    several_clocks,
    with_cause,
)
from lockstep_alerts.rules.parameters import Expressions, Parameters
from lockstep_catalogue import recorded, training
from lockstep_catalogue.labels import NODE, PHASE, PP, RANK
from lockstep_catalogue.metric import Label, Recorded
from lockstep_catalogue.promql import by, names, select
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
    compared = (
        f"{judged}\nunless {JOB_JOIN} ({several_clocks()})\nunless {select_jobs_without_pages()}"
    )
    # By half: the ranks of a slow node are late by about the same, and must not be split into
    # some that are named with their node and some that are named by themselves.
    whole_node = f"{NODE_JOIN} ({select(recorded.NODE_LATENESS_RATIO)} > {ratio / 2:g})"
    ranks = (
        f"{late} > {ratio:g}\nand {RANK_JOIN} ({_explained_by_own_work(ratio, RANK_LABELS)})\n"
        f"{compared}\nunless {whole_node}\nunless {_explained_by_load()}"
    )
    nodes = (
        f"{by('max', late, *NODE_LABELS)} > {ratio:g}\nand {whole_node}\n"
        f"and {NODE_JOIN} ({_explained_by_own_work(ratio, NODE_LABELS)})\n{compared}"
    )
    excess, stage_excess = recorded.EXCESS, recorded.STAGE_EXCESS
    stages = f"{_slowed_stages(rules)}\n{judged}"
    placement = select(recorded.PLACEMENT)
    # A join that meets a stage of several ranks, of any job, would fail the rule for all jobs.
    single = f"{placement} and {_STAGE_JOIN} {by('count', placement, *_STAGE_LABELS)} == 1"
    on_rank = f"{_STAGE_JOIN} group_left ({names(RANK, NODE)}) ({single})"
    parts = {
        "rank": _add_phase(ranks, RANK_LABELS, windows, excess),
        "node": _add_phase(nodes, NODE_LABELS, windows, excess),
        "stage": f"{_add_phase(stages, _STAGE_LABELS, windows, stage_excess)} * {on_rank}",
    }
    return "\nor\n".join(with_cause(cause, text) for cause, text in parts.items())


def _add_phase(
    late: str, labels: tuple[Label, ...], windows: ScrapeWindows, excess: Recorded
) -> str:
    phase = phase_of_most_excess(windows, excess, *labels)
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


EXPRESSIONS: Expressions = {recorded.LATE_PART: _late_parts}
