"""PromQL that several conditions share: which jobs run on a node, who is late, and why."""

from collections.abc import Callable

from lockstep_catalogue import agent, gpu, recorded, training
from lockstep_catalogue.labels import CLOCK, CLUSTER, JOB_ID, NODE, PHASE, RANK, STATE
from lockstep_catalogue.metric import Label, Metric, Recorded
from lockstep_catalogue.promql import (
    Matcher,
    by,
    eq,
    has,
    increase,
    median_by,
    names,
    one_of,
    select,
)
from lockstep_catalogue.vocabulary import PAUSE_PHASES
from lockstep_catalogue.windows import ScrapeWindows, spelled

JOB_LABELS = (CLUSTER, JOB_ID)
RANK_LABELS = (*JOB_LABELS, RANK)
NODE_LABELS = (*JOB_LABELS, NODE)
CLUSTER_JOIN = f"on ({CLUSTER.name})"
JOB_JOIN = f"on ({names(*JOB_LABELS)})"
RANK_JOIN = f"on ({names(*RANK_LABELS)})"
NODE_JOIN = f"on ({names(*NODE_LABELS)})"
RUNNING = ("init", "training", "checkpoint", "eval", "restore")
"""States of a rank whose process runs."""
_MOMENT_SECONDS = 120
MACHINE_JOIN = f"on ({names(CLUSTER, NODE)})"
_PHASE_SECONDS = 60
# The longest sequence alone makes no work: its square does, and it is in the squares.
_LOADS = ("samples", "tokens", "squares")
# Own work is not exactly in proportion to the load.
_LOAD_SLACK = 1.25
_REMEMBERED = "2h"
NEVER_PAGES = 2
"""Value of ``recorded.JOB_QUIET`` for a job of a class that never pages."""


def grown(metric: Metric, window: str, *matchers: Matcher, labels: tuple[Label, ...]) -> str:
    """By how much a counter has grown within the window; what is only seen anew does not count.

    ``increase`` does not see the first increment of a series that is born above zero. It counts
    where the agent of the node was seen before the window and the series was not, under any
    instance: after a gap, a restart or in a fresh Prometheus nothing says that it is new.
    """
    count = select(metric, *matchers)
    before = f"[{_REMEMBERED}] offset {window}"
    per_place = by("max", count, *dict.fromkeys((*labels, NODE)))
    seen_before = f"present_over_time({count}{before})"
    watched = f"present_over_time({select(agent.AGENT_INFO)}{before})"
    on_series = f"on ({names(*dict.fromkeys((*labels, NODE)))})"
    born = f"{per_place} > 0 unless {on_series} {seen_before} and {MACHINE_JOIN} {watched}"
    return f"{increase(metric, window, *matchers)} > 0 or ({born})"


def recent(series: Recorded, windows: ScrapeWindows, every_seconds: int = 0) -> str:
    """A series that another file records: at most two evaluations old, of its own group."""
    seconds = 2 * max(windows.evaluation_seconds, every_seconds)
    return f"last_over_time({select(series)}[{spelled(seconds)}])"


def kube_says(places: str, holds: Callable[..., str]) -> str:
    """Those places of which kube-state-metrics says something, by cluster and node.

    Where its series carry no cluster, nodes whose name is in one cluster only.
    """
    machines = by("group", places, CLUSTER, NODE)
    on_name = f"on ({NODE.name})"
    ambiguous = f"count by ({NODE.name}) ({machines}) > 1"
    return (
        f"({places} and {MACHINE_JOIN} {holds(has(CLUSTER))}\n"
        f"or {places} and {on_name} ({holds(eq(CLUSTER, ''))} unless {on_name} ({ambiguous})))"
    )


def select_jobs_without_pages() -> str:
    """Filter for the right side of ``unless``: jobs at which a person sits."""
    return f"{JOB_JOIN} (last_over_time({select(recorded.JOB_QUIET)}[2m]) == {NEVER_PAGES})"


def num_ranks(*states: str) -> str:
    """Ranks of each job that are in one of the states."""
    return by("sum", select(training.RANKS, one_of(STATE, *states)), *JOB_LABELS)


def has_paused(windows: ScrapeWindows) -> str:
    """Filter for the right side of ``unless``: jobs of which a rank pauses by plan, or just did.

    Recorded series are an evaluation old: what stood in the pause stands in them a moment longer.
    """
    ranks = select(training.RANKS, one_of(STATE, *PAUSE_PHASES))
    lately = by("sum", f"max_over_time({ranks}[{windows.live}])", *JOB_LABELS)
    return f"{JOB_JOIN} ({lately} > 0)"


def select_training_jobs() -> str:
    """Filter for the right side of ``and``: jobs of which a rank trains."""
    return f"{JOB_JOIN} ({num_ranks('training')} > 0)"


def has_stood(windows: ScrapeWindows) -> str:
    """Filter for the right side of ``unless``: jobs that stand still, or did a moment ago.

    The step that stood is in the windows of the means afterwards, on whichever rank.
    """
    stood = f"present_over_time({select(recorded.STANDING)}[{spelled(2 * windows.live_seconds)}])"
    hung = f"present_over_time({select(training.HANG_FIRST)}[{windows.long}])"
    return f"{JOB_JOIN} ({stood} or {by('group', hung, *JOB_LABELS)})"


def several_clocks() -> str:
    """Jobs whose ranks are timed by different clocks, with their number."""
    clocks = by("count", select(training.RANK_INFO), *JOB_LABELS, CLOCK)
    return f"{by('count', clocks, *JOB_LABELS)} > 1"


def has_several_clocks() -> str:
    """Filter for the right side of ``unless``: jobs whose ranks are not timed by one clock."""
    return f"{JOB_JOIN} ({several_clocks()})"


def phase_of_most_excess(windows: ScrapeWindows, excess: Recorded, *labels: Label) -> str:
    """The phase in which most of the excess is, as one series with value 1 for a join on labels."""
    # The mean over a minute: a phase that flickers would begin a new alert each time.
    mean = f"avg_over_time({select(excess)}[{windows.cover(_PHASE_SECONDS)}])"
    by_phase = by("sum", mean, *labels, PHASE)
    # ``group`` makes ties harmless: a join that meets two series fails the whole rule.
    return by("group", f"topk by ({names(*labels)}) (1, {by_phase})", *labels, PHASE)


def explained_by_own_work(above_ratio: float, labels: tuple[Label, ...]) -> str:
    """Units whose own work beyond the group's median is half of this share of the step.

    Without it a rank that writes a checkpoint for all others would be called a straggler.
    """
    excess = by("avg", by("sum", select(recorded.EXCESS), *RANK_LABELS, NODE), *labels)
    limit = f"{above_ratio / 2:g} * {select(recorded.STEP_MEAN)}"
    return f"{excess} > {JOB_JOIN} group_left () ({limit})"


def node_is_late(above_ratio: float) -> str:
    """Nodes all of whose ranks of a job are late, by half of the limit at least.

    By half: the ranks of a slow node are late by about the same, and must not be split into some
    that are named with their node and some that are named by themselves.
    """
    return f"{select(recorded.NODE_LATENESS_RATIO)} > {above_ratio / 2:g}"


def load_excess(*labels: Label) -> str:
    """By how much the heaviest rank of each of these is above the job's median, by kind of load."""
    by_load = (*JOB_LABELS, training.LOAD)
    compared = one_of(training.LOAD, *_LOADS)
    heaviest = by("max", select(training.HEAVIEST_LOAD, compared), *labels, training.LOAD)
    median = median_by(select(training.MEDIAN_LOAD, compared), *by_load)
    return f"{heaviest} / on ({names(*by_load)}) group_left () ({median} > 0) - 1"


def explained_by_load() -> str:
    """Filter for the right side of ``unless``: late ranks that have as much more to do.

    A rank that costs the share r of a step works r / (1 - r) longer than the others.
    """
    late = select(recorded.LATENESS_RATIO)
    excess = by("max", load_excess(*RANK_LABELS), *RANK_LABELS)
    return f"{RANK_JOIN} ({late} / (1 - {late}) < {RANK_JOIN} {_LOAD_SLACK:g} * {excess})"


def runs_on() -> str:
    """Jobs with a running rank on a node, one series each."""
    ranks = select(training.RANKS, one_of(STATE, *RUNNING))
    return by("group", f"{ranks} > 0", *NODE_LABELS)


def ran_on(windows: ScrapeWindows) -> str:
    """The same of the last two minutes, without jobs that ended well.

    A fault that ends its rank at once is seen after the rank.
    """
    moment = windows.cover(_MOMENT_SECONDS)
    lately = f"max_over_time({select(training.RANKS, one_of(STATE, *RUNNING))}[{moment}])"
    done = f"{JOB_JOIN} {select(training.RANKS, one_of(STATE, 'done'))} > 0"
    return f"({by('group', f'{lately} > 0', *NODE_LABELS)} unless {done})"


def held_gpus(windows: ScrapeWindows) -> str:
    """Owners of GPUs of the last two minutes that are jobs, one series each."""
    moment = windows.cover(_MOMENT_SECONDS)
    return f"max_over_time({select(gpu.GPU_OWNER_INFO, has(JOB_ID))}[{moment}])"
