"""Conditions on the monitoring itself: agents, ledger, rules, and the watchdog."""

from typing import Annotated

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.evidence import listing
from lockstep_alerts.conditions.joins import (
    CLUSTER_JOIN,
    JOB_JOIN,
    JOB_LABELS,
    MACHINE_JOIN,
    RUNNING,
    num_ranks,
)
from lockstep_alerts.reading.entry import Entry
from lockstep_alerts.reading.model import Duration
from lockstep_alerts.reading.quantities import Ratio, Window, number, whole_number
from lockstep_catalogue import agent, feeds, foreign, ledger, training
from lockstep_catalogue.labels import CLUSTER, NODE, STATE
from lockstep_catalogue.metric import Label
from lockstep_catalogue.promql import (
    Matcher,
    by,
    eq,
    has,
    histogram_quantile,
    increase,
    median_by,
    names,
    none_of,
    one_of,
    select,
)
from lockstep_catalogue.windows import MIN_SCRAPES, ScrapeWindows, spelled

_STUCK_SECONDS = 60  # an agent renders every few seconds
_AGENTS = Matcher(foreign.TARGET_JOB, "=~", ".*lockstep-agent")
_EXPECTED = (CLUSTER, NODE, foreign.TARGET_INSTANCE)


def silent_agents(windows: ScrapeWindows, nodes: tuple[str, ...]) -> str:
    """Agents that should answer and do not, by cluster and node, or instance where it has no node.

    By what Prometheus is told to scrape, and by the nodes of Kubernetes: an agent that never
    answered has no series of its own, and one is missed until it is seen again or leaves both.
    """
    targets = select(foreign.UP, _AGENTS)
    lately = by("max", f"max_over_time({targets}[{windows.live}])", *_EXPECTED)
    # The address changes with each pod; it names a target that has no node.
    without_node = (
        f"{lately} == 0 and on ({names(*_EXPECTED)}) {select(foreign.UP, _AGENTS, eq(NODE, ''))}"
    )
    seen = by(
        "group", f"present_over_time({select(agent.AGENT_INFO)}[{windows.live}])", CLUSTER, NODE
    )
    tick = f"{select(agent.AGENT_TICK)}[{windows.cover(_STUCK_SECONDS)}]"
    # By the agent's own clock: it serves a text that does not change.
    stuck = by("max", f"max_over_time({tick}) - min_over_time({tick})", CLUSTER, NODE)
    # Scraped for long enough to tell whether the text changes.
    watched = by("group", f"count_over_time({tick}) >= {MIN_SCRAPES}", CLUSTER, NODE)
    frozen = f"({stuck} == 0 and {MACHINE_JOIN} {watched})"
    missing = f"({_select_expected(nodes)} unless {MACHINE_JOIN} {seen})"
    return (
        f"(({without_node}) or {frozen} or {missing})\n"
        f"unless {MACHINE_JOIN} ({select(foreign.KUBE_CORDONED, has(CLUSTER))} == 1)\n"
        f"unless on ({NODE.name}) ({select(foreign.KUBE_CORDONED, eq(CLUSTER, ''))} == 1)"
    )


def _select_expected(nodes: tuple[str, ...]) -> str:
    """Nodes that should have an agent: of targets, and of clusters in which any agent answers."""
    inventory = select(foreign.KUBE_NODE, has(CLUSTER), one_of(NODE, *nodes))
    in_use = f"{inventory} and {CLUSTER_JOIN} {select(agent.AGENT_INFO)}"
    return by("group", f"{select(foreign.UP, _AGENTS, has(NODE))} or {in_use}", CLUSTER, NODE)


def _select_unexpected() -> str:
    """Nodes of agents that no inventory has, where Kubernetes or their own target names nodes."""
    agents, targets = select(agent.AGENT_INFO), select(foreign.UP, _AGENTS, has(NODE))
    listed = select(foreign.KUBE_NODE, has(CLUSTER))
    on_target = f"on ({names(CLUSTER, foreign.TARGET_INSTANCE)})"
    compared = f"{agents} and {CLUSTER_JOIN} {listed} or {agents} and {on_target} {targets}"
    inventory = by("group", f"{targets} or {listed}", CLUSTER, NODE)
    return by("group", f"({compared}) unless {MACHINE_JOIN} {inventory}", CLUSTER, NODE)


class _Agents(Condition):
    """Agents that should answer and do not, or serve a text that stands.

    Attributes:
        nodes: of Kubernetes that have an agent, a regular expression.
    """

    nodes: Annotated[tuple[str, ...], Entry.texts] = (".*",)

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """A live window without an answer, or a minute with an old text."""
        return max(windows.live_seconds, _STUCK_SECONDS)


class AgentDown(_Agents):
    """Agents that should answer and do not, serve a text that stands, or are of unknown nodes."""

    def expression(self, windows: ScrapeWindows) -> str:
        """Agents by their node, or by their address where the target names none."""
        return f"{silent_agents(windows, self.nodes)}\nor\n{_select_unexpected()}"


class AgentsDown(_Agents):
    """Clusters in which more than ``above_ratio`` of the agents do not answer.

    Attributes:
        above_ratio: share of the cluster's agents that is silent.
        least_agents: that are silent; one of a few nodes says little about the cluster.
    """

    above_ratio: Ratio
    least_agents: Annotated[int, whole_number(1, 10_000)] = 3

    def expression(self, windows: ScrapeWindows) -> str:
        """Number of silent agents of each cluster, where their share is above the limit."""
        silent = by("count", f"({silent_agents(windows, self.nodes)})", CLUSTER)
        all_agents = by("count", select(foreign.UP, _AGENTS), CLUSTER)
        too_many = f"{CLUSTER_JOIN} ({self.above_ratio:g} * {all_agents})"
        return f"{silent} >= {self.least_agents} > {too_many}"

    def evidence(self) -> str:
        """Asks Prometheus which agents do not answer."""
        down = select(foreign.UP, _AGENTS, eq(CLUSTER, "%[1]s"))
        item = "{{ $series.Labels.instance }}"
        return listing(f"{down} == 0", item, CLUSTER)


class ClockOff(Condition):
    """Nodes whose clock differs from the others' by more than ``above``; and Prometheus' own.

    Attributes:
        above: difference from the median of the cluster's agents.
    """

    above: Annotated[Duration, Entry.duration]

    def expression(self, windows: ScrapeWindows) -> str:
        """Seconds by which a node is ahead, and clusters from all of which Prometheus differs."""
        # When a sample was taken is Prometheus' time, and its value the node's.
        tick = select(agent.AGENT_TICK)
        ahead = by("max", f"{tick} - timestamp({tick})", CLUSTER, NODE)
        median = median_by(ahead, CLUSTER)
        slack = self.above.seconds + windows.scrape_seconds
        apart = f"{ahead} - {CLUSTER_JOIN} group_left () {median}"
        of_prometheus = f"abs({median}) > {slack}"
        return f"abs({apart}) > {self.above.seconds}\nor\n{of_prometheus}"


_LEDGER_MEMORY = "3d"
_GROUP_JOIN = f"on ({names(CLUSTER, foreign.TARGET_INSTANCE, foreign.RULE_GROUP)})"
_LEDGERS = Matcher(foreign.TARGET_JOB, "=~", ".*lockstep-ledger")


class LedgerStale(Condition):
    """Clusters whose ledger has counts older than ``above``, or does not answer."""

    DETECTED_AFTER = "above"

    above: Window

    def expression(self, windows: ScrapeWindows) -> str:
        """Clusters whose ledger answers with old counts, or no longer answers."""
        jobs = select(ledger.JOBS)
        instance = foreign.TARGET_INSTANCE.name
        # The time of the counts has no cluster: it is joined through the ledger's address. Two
        # ledgers behind one address have counts of different age: the newest of the window counts.
        lately = f"max_over_time({select(ledger.REFRESHED)}[{windows.live}])"
        age = f"min by ({instance}) (time() - {lately})"
        recent = by("group", f"last_over_time({jobs}[{_LEDGER_MEMORY}])", CLUSTER)
        old = f"{jobs} and on ({instance}) ({age} > {self.above.seconds})"
        up = f"max_over_time({select(foreign.UP, _LEDGERS)}[{windows.live}])"
        dead = f"{by('max', up, CLUSTER)} == 0"
        # Where Prometheus hears of nothing at all it is not the ledger that is away.
        gone = f"({recent} unless {CLUSTER_JOIN} {jobs} and on () (count({select(foreign.UP)})))"
        return f"{by('group', old, CLUSTER)}\nor\n{dead}\nor\n{gone}"


class FeedBehind(Condition):
    """Clusters whose scheduler the ledger has not heard for ``above``.

    Attributes:
        above: time since a feed asked its scheduler with success.
    """

    DETECTED_AFTER = "above"

    above: Window

    def expression(self, windows: ScrapeWindows) -> str:
        """Feeds whose newest answer is old; the ledger forgets them when it is started again."""
        del windows
        recent = f"last_over_time({select(feeds.ASKED)}[{_LEDGER_MEMORY}])"
        return f"time() - {by('max', recent, CLUSTER, feeds.FEED)} > {self.above.seconds}"


class RulesSlow(Condition):
    """Groups of rules that take more than ``above_ratio`` of their interval, or fail.

    Attributes:
        above_ratio: duration of an evaluation as a share of its interval.
    """

    above_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Groups of rules that are late, were skipped, or of which a rule fails."""
        window = spelled(max(300, 4 * windows.scrape_seconds))
        interval = f"({self.above_ratio:g} * {select(foreign.GROUP_INTERVAL)})"
        late = f"{select(foreign.GROUP_DURATION)} > {_GROUP_JOIN} {interval}"
        counted = " or ".join(
            f"{increase(counter, window)} > 0"
            for counter in (foreign.GROUP_MISSED, foreign.RULE_FAILURES)
        )
        labels = (CLUSTER, foreign.TARGET_INSTANCE, foreign.RULE_GROUP)
        return by("group", f"{late} or {counted}", *labels)


class TelemetryMissing(Condition):
    """Jobs of which fewer than ``below_ratio`` of the ranks report, or none at all.

    Attributes:
        below_ratio: ranks of a job that report, of all that it has.
    """

    below_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Jobs that train with too few ranks in sight; clusters with jobs that nobody sees."""
        size = by("max", select(training.WORLD_RANKS), *JOB_LABELS)
        seen = by("sum", select(training.RANKS), *JOB_LABELS)
        few = f"{seen} < {JOB_JOIN} ({self.below_ratio:g} * {size})"
        running = by("max", select(ledger.JOBS, eq(ledger.JOB_STATUS, "running")), CLUSTER)
        present = by("sum", select(training.RANKS, one_of(STATE, *RUNNING)), *JOB_LABELS)
        reported = by("count", f"{present} > 0", CLUSTER)
        # Without any job in sight the comparison has no series.
        none = f"{running} > 0 unless {CLUSTER_JOIN} {reported}"
        trains = f"{JOB_JOIN} {num_ranks('training')} > 0"
        return f"{few} and {trains}\nor\n{running} > {CLUSTER_JOIN} {reported}\nor\n{none}"


class AgentImpaired(Condition):
    """Agents of which a part or a rank's monitor does not work, or that leave out jobs or events.

    Attributes:
        window: within which lost events, failed copies and skipped jobs count.
        spool_ratio: share of the spool that waiting events fill.
    """

    window: Window
    spool_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Nodes with such a part."""
        window = self.window.text
        signs = (
            f"{select(agent.COLLECTOR_SUCCESS)} == 0",
            f"{select(agent.WORKER_STALLED)} == 1",
            f"{select(agent.PAGES_UNREADABLE)} > 0",
            f"{select(agent.JOBS_CUT, one_of(agent.BOUND, *agent.LISTING_BOUNDS))} > 0",
            f"{increase(agent.JOBS_SKIPPED, window)} > 0",
            f"{select(training.FAILED_PARTS)} > 0",
            f"{select(agent.EVENTS_SPOOL_RATIO)} > {self.spool_ratio:g}",
            f"{increase(agent.EVENTS, window, one_of(agent.DELIVERY, 'refused', 'dropped'))} > 0",
            f"{increase(agent.ARCHIVED_FILES, window, eq(agent.ARCHIVED, 'failed'))} > 0",
        )
        return by("group", "\nor\n".join(signs), CLUSTER, NODE)


_INSTANCE: Label = foreign.TARGET_INSTANCE
_QUANTILE = 0.95
# A token that is refused is somebody without access, and an event that is sent again no loss.
_HARMLESS = ("finished", "token")


class LedgerImpaired(Condition):
    """Ledgers that refuse events, leave jobs aside, have errors, or commit in ``above_seconds``.

    Attributes:
        window: over which refusals, errors and commits are counted.
        above_seconds: duration that 95 % of the commits stay below.
    """

    window: Window
    above_seconds: Annotated[float, number(0, 60)]

    def expression(self, windows: ScrapeWindows) -> str:
        """Ledgers by their address."""
        window = self.window.text
        refusals = none_of(ledger.REFUSAL, *_HARMLESS)
        # A count that falls again and again is that of two processes behind one address.
        flaps = f"resets({select(ledger.REFUSED, refusals)}[{window}]) > 1"
        refused = f"({increase(ledger.REFUSED, window, refusals)} unless {flaps})"
        failed = increase(ledger.REQUESTS, window, eq(ledger.HTTP_STATUS, "5xx"))
        letters = f"delta({select(ledger.DEAD_LETTERS)}[{window}])"
        aside = select(ledger.JOBS_ASIDE)
        commits = histogram_quantile(_QUANTILE, ledger.COMMIT_DURATION, window, _INSTANCE)
        slow = f"{commits} > {self.above_seconds:g}"
        grown = " or ".join(f"{sign} > 0" for sign in (refused, failed, letters, aside))
        return by("group", f"{grown} or {slow}", _INSTANCE)


class AlwaysFiring(Condition):
    """The dead man's switch: it fires always, and its silence says that the pipeline is broken."""

    def expression(self, windows: ScrapeWindows) -> str:
        """One, without labels."""
        return "vector(1)"
