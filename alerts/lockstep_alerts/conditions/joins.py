"""PromQL that conditions share: joins, faults of GPUs, evidence, and the causes of a page."""

import re
from collections.abc import Callable

from lockstep_catalogue import agent, foreign, gpu, incidents, recorded, training
from lockstep_catalogue.foreign import ALERT_CAUSE
from lockstep_catalogue.labels import (
    CLOCK,
    CLUSTER,
    JOB_ID,
    NAMESPACE,
    NODE,
    PCI_BUS_ID,
    PHASE,
    POD,
    RANK,
    STATE,
    UUID,
    VERDICT,
)
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
from lockstep_catalogue.training import RANK_INFO
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
NODE_NAME_JOIN = f"on ({NODE.name})"
_PHASE_SECONDS = 60
# The longest sequence alone makes no work: its square does, and it is in the squares.
_LOADS = ("samples", "tokens", "squares")
_REMEMBERED = "2h"
NEVER_PAGES = 2
"""Value of ``recorded.JOB_QUIET`` for a job of a class that never pages."""


def grown(
    metric: Metric,
    window: str,
    *matchers: Matcher,
    labels: tuple[Label, ...],
    total: Metric | None = None,
) -> str:
    """By how much a counter has grown within the window; what is only seen anew does not count.

    ``increase`` does not see the first increment of a series that is born above zero. It counts
    where the agent of the node was seen before the window and the series was not, under any
    instance: after a gap, a restart or in a fresh Prometheus nothing says that it is new. On a node
    that is seen for the first time the growth of ``total`` says it: its counter of the same events,
    which every job has from 0 on.
    """
    count = select(metric, *matchers)
    before = f"[{_REMEMBERED}] offset {window}"
    per_place = by("max", count, *dict.fromkeys((*labels, NODE)))
    seen_before = f"present_over_time({count}{before})"
    watched = f"present_over_time({select(agent.AGENT_INFO)}{before})"
    if total is not None:
        watched = f"({watched} or {by('group', f'{increase(total, window)} > 0', CLUSTER, NODE)})"
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


def several_clocks() -> str:
    """Jobs whose ranks are timed by different clocks, with their number."""
    clocks = by("group", select(training.RANK_INFO), *JOB_LABELS, CLOCK)
    return f"{by('count', clocks, *JOB_LABELS)} > 1"


_STANDING = 4


def phase_of_most_excess(
    windows: ScrapeWindows, excess: Recorded, *labels: Label, of: str = ""
) -> str:
    """The phase in which most of the excess is, as one series with value 1 for a join on labels.

    ``of`` may select those that it is asked of.
    """
    mean = f"avg_over_time({select(excess)}[{windows.cover(_PHASE_SECONDS)}])"
    chosen = f"{mean} and on ({names(*labels)}) ({of})" if of else mean
    by_phase = by("sum", chosen, *labels, PHASE)
    # Another phase is another alert: the one that people were told stands until another takes
    # several times as long.
    firing = (eq(foreign.ALERT_STATE, "firing"), has(PHASE))
    standing = by("group", select(foreign.ALERTS, *firing), *labels, PHASE)
    by_phase = f"{by_phase} * on ({names(*labels, PHASE)}) ({_STANDING} * {standing}) or {by_phase}"
    # ``group`` makes ties harmless: a join that meets two series fails the whole rule.
    return by("group", f"topk by ({names(*labels)}) (1, {by_phase})", *labels, PHASE)


def load_excess(*labels: Label) -> str:
    """By how much the heaviest rank of each of these is above the job's median, by kind of load."""
    by_load = (*JOB_LABELS, training.LOAD)
    compared = one_of(training.LOAD, *_LOADS)
    heaviest = by("max", select(training.HEAVIEST_LOAD, compared), *labels, training.LOAD)
    median = median_by(select(training.MEDIAN_LOAD, compared), *by_load)
    return f"{heaviest} / on ({names(*by_load)}) group_left () ({median} > 0) - 1"


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


def unless_drained(nodes: str, windows: ScrapeWindows) -> str:
    """The nodes but those that are cordoned and carry no job: somebody repairs them."""
    # A job that has ended well leaves sooner than those that ran lately.
    done = select(training.RANKS, one_of(STATE, "done"))
    over = f"max_over_time({done}[{windows.cover(_MOMENT_SECONDS)}]) > 0"
    at_work = by("group", f"{ran_on(windows)} unless {JOB_JOIN} {over}", CLUSTER, NODE)
    named, unnamed = (
        f"{select(foreign.KUBE_CORDONED, cluster)} == 1 unless {on} {at_work}"
        for cluster, on in ((has(CLUSTER), MACHINE_JOIN), (eq(CLUSTER, ""), NODE_NAME_JOIN))
    )
    return f"{nodes}\nunless {MACHINE_JOIN} ({named})\nunless {NODE_NAME_JOIN} ({unnamed})"


def held_gpus(windows: ScrapeWindows) -> str:
    """Owners of GPUs of the last two minutes that are jobs, one series each."""
    moment = windows.cover(_MOMENT_SECONDS)
    return f"max_over_time({select(gpu.GPU_OWNER_INFO, has(JOB_ID))}[{moment}])"


def with_cause(cause: str, expression: str) -> str:
    """Series with their cause in the label."""
    return f'label_replace({expression}, "{ALERT_CAUSE.name}", "{cause}", "", "")'


JUDGED_EVERY_SECONDS = 10
"""Tier of the agent's collector of verdicts."""
HOLD_SECONDS = {"throttled": 60, "link_slow": 30}
"""How long the agent sees these signs before it calls them a verdict (``health/signs.py``)."""
GPU_JOIN = f"on ({names(CLUSTER, NODE, UUID)})"
BUS_JOIN = f"on ({names(CLUSTER, NODE, PCI_BUS_ID)})"
_XID_JOIN = f"on ({names(CLUSTER, NODE, incidents.XID)})"
WHOLE_NODE = ("gpu_count_short", "driver_hung")
"""Reasons of a failed node that name no GPU."""


def failed_gpus() -> str:
    """GPUs that failed: lost, silent, hung, out of spare rows."""
    return select(incidents.GPU_HEALTH, eq(VERDICT, "failed"))


def fatal_xids(window: str, *matchers: Matcher, has_remedy: bool = False) -> str:
    """Fatal Xids that were reported within the window of seconds, by address on the bus."""
    # The time and not the count: a counter kept over restarts is born with old incidents.
    lately = f"time() - {select(incidents.GPU_XID_LAST, *matchers)} < {window}"
    fatal = select(incidents.GPU_XID_INFO, eq(incidents.SEVERITY, "fatal"))
    if has_remedy:
        return f"({lately}) * {_XID_JOIN} group_left ({incidents.REMEDY.name}) {fatal}"
    return f"({lately}) and {_XID_JOIN} {fatal}"


_SERIES_LABEL = re.compile(r"\$series\.Labels\.([a-z_]+)")


def listing(
    query: str,
    item: str,
    *labels: Label,
    before: str = "",
    most: int = 8,
    order: Label | None = None,
    end: str = ".{{ end }}",
) -> str:
    """A Prometheus template: the series of a query, one phrase each; nothing where there are none.

    Args:
        query: PromQL with ``%[1]s`` and so on for the values of the labels.
        item: the phrase, a template over ``$series``, which begins with one of its labels: the
            series come in the order of that label, or of ``order``.
        labels: of the alert, in the order of the query's numbers.
        before: words before the first.
        most: as many are named.
        order: see ``item``.
        end: of the sentence and of the template; empty where an else follows.
    """
    first = _SERIES_LABEL.search(item)
    assert first is not None, f"{item} names no label"
    sorted_by = order.name if order else first[1]
    values = " ".join(f"$labels.{label.name}" for label in labels)
    answer = f"query (printf `topk({most}, {query})` {values})"
    return (
        f'{{{{ with {answer} | sortByLabel "{sorted_by}" }}}}'
        f"{before}{{{{ range $i, $series := . }}}}{{{{ if $i }}}}, {{{{ end }}}}{item}{{{{ end }}}}"
        f"{end}"
    )


def naming_pod(labels: str, before: str, after: str) -> str:
    """A Prometheus template: the pod of the rank in ``labels``, such as ``$labels``, or nothing."""
    matchers = ", ".join(f"{label.name}='%s'" for label in RANK_LABELS)
    values = " ".join(f"{labels}.{label.name}" for label in RANK_LABELS)
    query = f"query (printf \"{RANK_INFO.name}{{{matchers}, {POD.name}!=''}}\" {values})"
    pod = "/".join(f'{{{{ . | first | label "{part.name}" }}}}' for part in (NAMESPACE, POD))
    return f"{{{{ with {query} }}}}{before}{pod}{after}{{{{ end }}}}"


_CAUSES_REMEMBERED = "1h"
_MOST = 8
_ITEM = (
    "{{ $series.Labels.alertname }}{{ with $series.Labels.cause }} ({{ . }}){{ end }}"
    "{{ with $series.Labels.node }} on {{ . }}{{ end }}{{ with $series.Labels.gpu }}, GPU {{ . }}"
    "{{ end }}{{ with $series.Labels.source }} {{ . }}{{ end }} since"
    " {{ $series.Value | humanizeTimestamp }}"
)


def causes_of_job(cluster: str, job_id: str) -> str:
    """PromQL: causes of a job and of the nodes that it has or had, with the time of their begin."""
    stands = (has(foreign.WEIGHT), *match_cluster(cluster))
    of_job = select(foreign.ALERTS_FOR_STATE, *stands, eq(JOB_ID, job_id))
    of_nodes = select(foreign.ALERTS_FOR_STATE, *stands, has(NODE), eq(JOB_ID, ""))
    ranks = select(training.RANKS, *match_cluster(cluster), eq(JOB_ID, job_id))
    here = f"on ({names(CLUSTER, NODE)}) last_over_time({ranks}[{_CAUSES_REMEMBERED}])"
    return f"{of_job} or ({of_nodes} and {here})"


def causes_of_cluster(cluster: str) -> str:
    """PromQL: every cause of a cluster."""
    return select(foreign.ALERTS_FOR_STATE, has(foreign.WEIGHT), *match_cluster(cluster))


def match_cluster(cluster: str) -> tuple[Matcher, ...]:
    """A matcher of the cluster; none of one without a name."""
    return (eq(CLUSTER, cluster),) if cluster else ()


def causes(is_of_job: bool) -> str:
    """A template: the causes of a page."""
    labels: tuple[Label, ...] = (CLUSTER, JOB_ID) if is_of_job else (CLUSTER,)
    query = causes_of_job("%[1]s", "%[2]s") if is_of_job else causes_of_cluster("%[1]s")
    return listing(f"({query})", _ITEM, *labels, most=_MOST, order=foreign.WEIGHT)
