"""Agents that should answer and do not, and clocks that are off."""

from typing import Annotated

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.evidence import listing
from lockstep_alerts.conditions.joins import CLUSTER_JOIN, MACHINE_JOIN
from lockstep_alerts.reading.entry import Entry
from lockstep_alerts.reading.model import Duration
from lockstep_alerts.reading.quantities import Ratio, whole_number
from lockstep_catalogue import agent, foreign
from lockstep_catalogue.labels import CLUSTER, NODE
from lockstep_catalogue.promql import Matcher, by, eq, has, median_by, names, one_of, select
from lockstep_catalogue.windows import MIN_SCRAPES, ScrapeWindows

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
