"""Health of the monitoring: agents, the ledger, and the evaluation of the rules."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from lockstep_alerts.conditions.condition import Case, Condition
from lockstep_alerts.conditions.evidence import listing
from lockstep_alerts.conditions.joins import ON_MACHINE
from lockstep_alerts.conditions.synthetic import (
    Course,
    Samples,
    Stretch,
    Timing,
    growing,
    sample_node,
    samples,
    steady,
    steps_up,
)
from lockstep_alerts.reading.model import Duration
from lockstep_alerts.reading.quantities import Number, Ratio, Time, Window
from lockstep_catalogue import agent, foreign, ledger
from lockstep_catalogue.labels import CLUSTER, NODE
from lockstep_catalogue.promql import Matcher, by, eq, increase, select
from lockstep_catalogue.windows import ScrapeWindows, spelled

# Long-lived producers only; one that was removed for good is forgotten after it.
_AGENT_MEMORY, _LEDGER_MEMORY = "1h", "3d"
_LONG_AGO = "5m"
"""The alerts wait for it, so that it names the same agents at every scrape interval."""
_ON_CLUSTER = f"on ({CLUSTER.name})"
_ON_GROUP = f"on ({foreign.RULE_GROUP.name})"


def _silent_agents(live: str, stuck_after: Duration, *matchers: Matcher) -> str:
    info = select(agent.AGENT_INFO, *matchers)
    recent = by("group", f"last_over_time({info}[{_AGENT_MEMORY}])", CLUSTER, NODE)
    stuck = f"time() - {select(agent.AGENT_TICK, *matchers)} > {stuck_after.seconds}"
    # One failed scrape does not mean that an agent is down.
    lately = f"present_over_time({info}[{live}])"
    answering = f"({lately} unless {ON_MACHINE} ({stuck}))"
    return f"({recent} unless {ON_MACHINE} {answering})"


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentsDown(Condition):
    """Clusters in which more than ``above_ratio`` of the agents are silent.

    Attributes:
        above_ratio: share of the cluster's agents that is silent; 0 for any.
        stuck_after: age of the exposition from which on an agent has stopped to render.
    """

    above_ratio: Annotated[float, Number(-1, 1)]
    stuck_after: Annotated[Duration, Time()]

    def expression(self, windows: ScrapeWindows) -> str:
        """Number of silent agents of each cluster, where their share is above the limit."""
        recent = f"last_over_time({select(agent.AGENT_INFO)}[{_AGENT_MEMORY}])"
        num_recent = by("count", by("group", recent, CLUSTER, NODE), CLUSTER)
        num_silent = by("count", _silent_agents(windows.live, self.stuck_after), CLUSTER)
        return f"{num_silent} > {_ON_CLUSTER} ({self.above_ratio:g} * {num_recent})"

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """A live window without a sample, or a minute with an old one."""
        return max(windows.live_seconds, self.stuck_after.seconds)

    def evidence(self) -> str:
        """Asks Prometheus which agents are silent."""
        agents = by(
            "group", _silent_agents(_LONG_AGO, self.stuck_after, eq(CLUSTER, "%[1]s")), NODE
        )
        return listing(agents, "{{ $series.Labels.node }}", CLUSTER)

    def cases(self, timing: Timing) -> list[Case]:
        """Enough agents fall silent, or serve an old text; too few, or none, do."""
        num_agents = 20
        num_silent = int(num_agents * self.above_ratio) + 1
        cluster = {"cluster": "c1"}
        return [
            Case("agents are silent", _agents(timing, num_agents, num_silent), cluster),
            Case("agents are stuck", _agents(timing, num_agents, num_silent, True), cluster),
            Case("too few are silent", _agents(timing, num_agents, num_silent - 1)),
        ]


def _agents(
    timing: Timing, num_agents: int, num_silent: int, is_stuck: bool = False
) -> list[Samples]:
    """Agents of a cluster, of which some fall silent or stop at the onset."""
    onset, lasting = timing.onset_seconds, timing.fires_by_seconds
    series = []
    for number in range(num_agents):
        fails = number < num_silent
        seconds = onset if fails and not is_stuck else lasting
        moving = (Stretch(onset, 1), Stretch(seconds - onset, 0 if fails else 1))
        node = f"n{number}"
        series.append(sample_node(agent.AGENT_INFO, steady(1, seconds), node, version="1"))
        series.append(sample_node(agent.AGENT_TICK, growing(*moving), node))
    return series


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerStale(Condition):
    """Clusters whose ledger has counts older than ``above``, or does not answer.

    Attributes:
        above: age of the ledger's counts.
    """

    DETECTED_AFTER: ClassVar[int | str] = "above"

    above: Window

    def expression(self, windows: ScrapeWindows) -> str:
        """Clusters whose ledger answers with old counts, or no longer answers."""
        del windows
        jobs = select(ledger.JOBS)
        instance = foreign.TARGET_INSTANCE.name
        # The time of the counts has no cluster: it is joined through the ledger's address.
        age = f"max by ({instance}) (time() - {select(ledger.REFRESHED)})"
        recent = by("group", f"last_over_time({jobs}[{_LEDGER_MEMORY}])", CLUSTER)
        old = f"{jobs} and on ({instance}) ({age} > {self.above.seconds})"
        return f"{by('group', old, CLUSTER)}\nor\n({recent} unless {_ON_CLUSTER} {jobs})"

    def cases(self, timing: Timing) -> list[Case]:
        """The counts stand still, the ledger is gone; counts that go on."""
        cluster = {"cluster": "c1"}
        onset, lasting = timing.onset_seconds, timing.fires_by_seconds
        stands = growing(Stretch(onset, 1), Stretch(lasting - onset, 0))
        return [
            Case("its counts are old", _ledger(stands, lasting), cluster),
            Case("it is gone", _ledger(growing(Stretch(onset, 1)), onset), cluster),
            Case("its counts are fresh", _ledger(growing(Stretch(lasting, 1)), lasting)),
        ]


def _ledger(counted: Course, seconds: int) -> list[Samples]:
    """A ledger with the time of its counts."""
    running = {"instance": "ledger:9450", "cluster": "c1", "job_status": "running"}
    return [
        samples(ledger.JOBS, steady(3, seconds), **running),
        samples(ledger.REFRESHED, counted, instance="ledger:9450"),
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
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
        late = f"{select(foreign.GROUP_DURATION)} > {_ON_GROUP} {interval}"
        counted = " or ".join(
            f"{increase(counter, window)} > 0"
            for counter in (foreign.GROUP_MISSED, foreign.RULE_FAILURES)
        )
        return by("group", f"{late} or {counted}", foreign.RULE_GROUP)

    def cases(self, timing: Timing) -> list[Case]:
        """A group is late, a rule fails; all is well."""
        group = {"rule_group": "a.yaml;x"}
        fails = growing(Stretch(timing.onset_seconds, 0), Stretch(timing.fires_within_seconds, 0.1))
        slows = steps_up(timing, to=10 * self.above_ratio + 1, start=0.1)
        late = samples(foreign.GROUP_DURATION, slows, **group)
        failures = samples(foreign.RULE_FAILURES, fails, **group)
        interval = samples(foreign.GROUP_INTERVAL, steady(10, timing.fires_by_seconds), **group)
        in_time = samples(foreign.GROUP_DURATION, steady(0.1, timing.fires_by_seconds), **group)
        return [
            Case("it is late", [interval, late], group),
            Case("a rule fails", [interval, in_time, failures], group),
            Case("it is in time", [interval, in_time]),
        ]
