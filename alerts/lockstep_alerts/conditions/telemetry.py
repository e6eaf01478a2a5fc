"""Conditions on the monitoring itself: agents, ledger, rules, and the watchdog."""

from typing import Annotated

from lockstep_alerts.conditions.condition import LIVE_WINDOW, Condition
from lockstep_alerts.conditions.joins import (
    CLUSTER_JOIN,
    JOB_JOIN,
    JOB_LABELS,
    MACHINE_JOIN,
    NODE_NAME_JOIN,
    RUNNING,
    num_ranks,
    recent,
    select_training_jobs,
    several_clocks,
)
from lockstep_alerts.reading.entry import Entry, Ratio, Window, number, whole_number
from lockstep_alerts.reading.model import Duration
from lockstep_catalogue import agent, feeds, foreign, ledger, recorded, training
from lockstep_catalogue.labels import CLUSTER, JOB_CLASS, NODE, STATE
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
from lockstep_catalogue.vocabulary import CANARY_ALERT, SYNTHETIC_CLASS
from lockstep_catalogue.windows import MIN_SCRAPES, ScrapeWindows, spelled

_EVERY_SECONDS = 30
_STUCK_SECONDS = 60  # an agent renders every few seconds
_AGENTS = Matcher(foreign.TARGET_JOB, "=~", ".*lockstep-agent")
_ADDRESSED_AGENTS = f'{agent.AGENT_INFO.name}{{{foreign.TARGET_INSTANCE.name}!=""}}'
"""Agents with the address of their target; every other selector takes the newest of equal ones."""
_KNOWN = "1d"
_ADDRESS_JOIN = f"on ({names(foreign.TARGET_INSTANCE)})"


def _seen(window: str) -> str:
    return by("group", f"present_over_time({select(agent.AGENT_INFO)}[{window}])", CLUSTER, NODE)


def _frozen(windows: ScrapeWindows) -> str:
    """Agents that serve a text that does not change, by their own clock."""
    tick = f"{select(agent.AGENT_TICK)}[{windows.cover(_STUCK_SECONDS)}]"
    stuck = by("max", f"max_over_time({tick}) - min_over_time({tick})", CLUSTER, NODE)
    # Scraped for long enough to tell whether the text changes.
    watched = by("group", f"count_over_time({tick}) >= {MIN_SCRAPES}", CLUSTER, NODE)
    return f"({stuck} == 0 and {MACHINE_JOIN} {watched})"


_WAS = f"last_over_time({_ADDRESSED_AGENTS}[{_KNOWN}])"


def _was_at(targets: str) -> str:
    """Agents at these targets in the last day, by what they said of themselves."""
    return by("group", f"{_WAS} and {_ADDRESS_JOIN} ({targets})", CLUSTER, NODE)


def silent_agents(windows: ScrapeWindows, nodes: tuple[str, ...]) -> str:
    """Agents that should answer and do not, by the cluster and node that they say themselves.

    A target carries a cluster or not: what an agent said of itself in the last day counts, and of
    one that never answered the nodes of Kubernetes, and the target. An agent is missed until it is
    seen again or leaves the inventory.
    """
    target = (CLUSTER, NODE, foreign.TARGET_INSTANCE)
    up = f"max_over_time({select(foreign.UP, _AGENTS)}[{windows.live}])"
    down = f"{by('max', up, *target)} == 0"
    fallen = _was_at(down)
    never = f"({down} unless {_ADDRESS_JOIN} {_WAS} unless {NODE_NAME_JOIN} {_seen(windows.live)})"
    seen = _seen(windows.live)
    inventory = select(foreign.KUBE_NODE, one_of(NODE, *nodes))
    listed = (
        f"({inventory} and {CLUSTER_JOIN} {seen} unless {MACHINE_JOIN} {seen}"
        f" or {select(foreign.KUBE_NODE, eq(CLUSTER, ''), one_of(NODE, *nodes))}"
        f" and on () ({seen}) unless {NODE_NAME_JOIN} {seen})"
    )
    missing = by("group", listed, CLUSTER, NODE)
    return (
        f"(({fallen} unless {MACHINE_JOIN} {seen}) or {missing} or {never} or {_frozen(windows)})\n"
        f"unless {MACHINE_JOIN} ({select(foreign.KUBE_CORDONED, has(CLUSTER))} == 1)\n"
        f"unless {NODE_NAME_JOIN} ({select(foreign.KUBE_CORDONED, eq(CLUSTER, ''))} == 1)"
    )


class AgentDown(Condition):
    """Agents on ``nodes`` of Kubernetes that should answer and do not, or serve an old text."""

    nodes: Annotated[tuple[str, ...], Entry.texts] = (".*",)

    def expression(self, windows: ScrapeWindows) -> str:
        """Agents by their node, or by their address where the target names none."""
        return silent_agents(windows, self.nodes)

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """A live window without an answer, or a minute with an old text."""
        return max(windows.live_seconds, _STUCK_SECONDS)


_RUNNING_JOBS = select(ledger.JOBS, eq(ledger.JOB_STATUS, "running"))


class Blind(Condition):
    """Work runs and cannot be seen: agents are silent, jobs in no agent's sight, rules fail.

    Attributes:
        above_ratio, least_agents: agents of a cluster that are silent.
        ledger_after: age of the ledger's counts by which objectives are judged.
        rules_after: for which rules fail or are late.
    """

    above_ratio: Ratio
    least_agents: Annotated[int, whole_number(1, 10_000)]
    jobs_ratio: Ratio
    ledger_after: Window
    rules_after: Window

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """That of its slowest reason."""
        agents = max(windows.live_seconds, _STUCK_SECONDS)
        return max(agents, self.ledger_after.seconds, self.rules_after.seconds)

    def expression(self, windows: ScrapeWindows) -> str:
        """What cannot be seen, by cluster and cause."""
        running = by("max", _RUNNING_JOBS, CLUSTER)
        ranks = select(training.RANKS, one_of(STATE, *RUNNING))
        lately = by("max", f"max_over_time({ranks}[15m])", CLUSTER)
        works = f"{CLUSTER_JOIN} ({running} > 0 or {lately} > 0 unless {CLUSTER_JOIN} {running})"
        # A node that is gone under its job is lost work, and told as that.
        gone = recent(recorded.GONE, windows, _EVERY_SECONDS)
        was_gone = f"last_over_time({select(recorded.GONE)}[{_KNOWN}])"
        lost_nodes = f"({gone} or {was_gone} unless {MACHINE_JOIN} {_seen('1h')})"
        missing = f"({silent_agents(windows, ('.*',))}) unless {MACHINE_JOIN} {lost_nodes}"
        silent = by("count", missing, CLUSTER)
        num_agents = by("count", _seen(_KNOWN), CLUSTER)
        most = f"{CLUSTER_JOIN} ({self.above_ratio:g} * {num_agents})"
        unseen = f"{_unseen_jobs(running)} >= {CLUSTER_JOIN} ({self.jobs_ratio:g} * {running})"
        stale = LedgerStale(above=self.ledger_after).expression(windows)
        # What the ledger said last: with a cluster that is switched off it ends, too.
        last_running = by("max", f"last_over_time({_RUNNING_JOBS}[{_LEDGER_MEMORY}])", CLUSTER)
        agents = f"({silent} >= {self.least_agents} > {most}) and {works}"
        reasons = {
            "agents": agents,
            # Of one job its own alerts tell, and of jobs of silent agents the agents.
            "jobs": f"({unseen}) > 1 unless {CLUSTER_JOIN} ({agents})",
            "ledger": f"({stale}) and {CLUSTER_JOIN} ({last_running} > 0 or {lately} > 0)",
            "rules": by("group", _failing_rules(self.rules_after.text), CLUSTER),
        }
        return "\nor\n".join(
            f'label_replace({text}, "{foreign.ALERT_CAUSE.name}", "{name}", "", "")'
            for name, text in reasons.items()
        )


def _unseen_jobs(running: str) -> str:
    """Running jobs of the ledger that no agent sees and that were not told as gone with a node."""
    present = by("sum", select(training.RANKS, one_of(STATE, *RUNNING)), *JOB_LABELS)
    gone = by("group", f"last_over_time({select(recorded.GONE)}[{_KNOWN}])", *JOB_LABELS)
    reported = by("count", f"{present} > 0 or {gone}", CLUSTER)
    # Without any job in sight the comparison has no series.
    return f"({running} - {CLUSTER_JOIN} ({reported} or 0 * {running}) > 0)"


_OURS = Matcher(foreign.RULE_GROUP, "=~", ".*lockstep-[a-z-]+")
_GROUP_COUNTERS = (foreign.GROUP_MISSED, foreign.RULE_FAILURES)


def _failing_rules(window: str) -> str:
    """Groups of these rules that failed or were left out at each look of the window."""
    counters = [select(each, _OURS) for each in _GROUP_COUNTERS]
    return " or ".join(
        f"increase({counter}[{window}]) > 0 and changes({counter}[{window}]) >= "
        f"0.5 * count_over_time({counter}[{window}])"
        for counter in counters
    )


class ClockOff(Condition):
    """Nodes whose clock differs from the others' by more than ``above``; and Prometheus' own."""

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
        # A ledger that answers with errors says so itself.
        errors = increase(ledger.REQUESTS, self.above.text, eq(ledger.HTTP_STATUS, "5xx"))
        by_address = f'last_over_time({ledger.JOBS.name}{{{instance}!=""}}[{_LEDGER_MEMORY}])'
        counted = f"{by_address} unless on ({instance}) {errors} > 0"
        recent = by("group", counted, CLUSTER)
        old = f"{jobs} and on ({instance}) ({age} > {self.above.seconds})"
        named, unnamed = (
            f"max_over_time({select(foreign.UP, _LEDGERS, cluster)}[{windows.live}])"
            for cluster in (has(CLUSTER), eq(CLUSTER, ""))
        )
        dead = f"{by('max', named, CLUSTER)} == 0"
        # Where Prometheus hears of nothing at all it is not the ledger that is away.
        gone = f"({recent} unless {CLUSTER_JOIN} {jobs} and on () (count({select(foreign.UP)})))"
        # Of a target without a cluster its last counts say whose it is, where there are any.
        nobodys = f"({by('max', unnamed, CLUSTER)} == 0 unless on () {gone})"
        return f"{by('group', old, CLUSTER)}\nor\n{dead}\nor\n{gone}\nor\n{nobodys}"


class FeedBehind(Condition):
    """Clusters whose scheduler the ledger has not heard for ``above``."""

    DETECTED_AFTER = "above"

    above: Window

    def expression(self, windows: ScrapeWindows) -> str:
        """Feeds whose newest answer is old; the ledger forgets them when it is started again."""
        del windows
        recent = f"last_over_time({select(feeds.ASKED)}[{_LEDGER_MEMORY}])"
        return f"time() - {by('max', recent, CLUSTER, feeds.FEED)} > {self.above.seconds}"


class RulesSlow(Condition):
    """Groups of rules that take more than ``above_ratio`` of their interval, or fail."""

    above_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Groups of rules that are late, were skipped, or of which a rule fails."""
        window = spelled(max(300, 4 * windows.scrape_seconds))
        interval = f"({self.above_ratio:g} * {select(foreign.GROUP_INTERVAL, _OURS)})"
        late = f"{select(foreign.GROUP_DURATION, _OURS)} > {_GROUP_JOIN} {interval}"
        counted = " or ".join(f"{increase(each, window, _OURS)} > 0" for each in _GROUP_COUNTERS)
        labels = (CLUSTER, foreign.TARGET_INSTANCE, foreign.RULE_GROUP)
        return by("group", f"{late} or {counted}", *labels)


class Unobserved(Condition):
    """Jobs of which a slow rank would not show, by the limits that the reports share."""

    DETECTED_AFTER = LIVE_WINDOW

    def expression(self, windows: ScrapeWindows) -> str:
        """Share of the step in the phase that may hide a slow rank, which the labels name."""
        # Ranks that are timed by different clocks are not compared: that is said, and not silent.
        hidden = f"({recent(recorded.UNOBSERVED, windows)} or {several_clocks()})"
        return f"{hidden} and {select_training_jobs()}"


class TelemetryMissing(Condition):
    """Jobs of which fewer than ``below_ratio`` of the ranks report, or none at all."""

    below_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Jobs that train with too few ranks in sight; clusters with jobs that nobody sees."""
        size = by("max", select(training.WORLD_RANKS), *JOB_LABELS)
        seen = by("sum", select(training.RANKS), *JOB_LABELS)
        few = f"{seen} < {JOB_JOIN} ({self.below_ratio:g} * {size})"
        running = by("max", _RUNNING_JOBS, CLUSTER)
        trains = f"{JOB_JOIN} {num_ranks('training')} > 0"
        return f"{few} and {trains}\nor\n{_unseen_jobs(running)}"


# A rollout starts an agent anew once; each time its target goes and comes.
_CRASHES, _LEAST_CHANGES = "1h", 6


class AgentImpaired(Condition):
    """Agents of which a part or a rank's monitor does not work, or that leave out jobs or events.

    Attributes:
        window: within which lost events, failed copies and skipped jobs count.
    """

    DETECTED_AFTER = LIVE_WINDOW

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
            _undelivered(windows),
            _was_at(f"changes({select(foreign.UP, _AGENTS)}[{_CRASHES}]) >= {_LEAST_CHANGES}"),
        )
        return by("group", "\nor\n".join(signs), CLUSTER, NODE)


def _undelivered(windows: ScrapeWindows) -> str:
    """Agents whose events wait while none leaves; a ledger that is away has an alert of its own."""
    left = increase(agent.EVENTS, windows.live, eq(agent.DELIVERY, "delivered"))
    ledgers = f"max_over_time({select(foreign.UP, _LEDGERS)}[{windows.live}])"
    return (
        f"{select(agent.EVENTS_PENDING)} > 0"
        f" unless {MACHINE_JOIN} {left} > 0 unless on () (max({ledgers}) == 0)"
    )


_INSTANCE: Label = foreign.TARGET_INSTANCE
_QUANTILE = 0.95
# A token that is refused is somebody without access, and an event that is sent again no loss.
_HARMLESS = ("finished", "token")


class LedgerImpaired(Condition):
    """Ledgers that refuse events, leave jobs aside, have errors, or commit in ``above_seconds``.

    Attributes:
        above_seconds: duration that 95 % of the commits stay below.
    """

    window: Window
    above_seconds: Annotated[float, number(0, ledger.COMMIT_DURATION.buckets[-1])]

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
        # Of what lies beyond the last bucket the quantile is that bucket's bound.
        slow = f"{commits} >= {self.above_seconds:g}"
        grown = " or ".join(f"{sign} > 0" for sign in (refused, failed, letters, aside))
        return by("group", f"{grown} or {slow}", _INSTANCE)


class AlwaysFiring(Condition):
    """The dead man's switch: it fires always, and its silence says that the pipeline is broken."""

    def expression(self, windows: ScrapeWindows) -> str:
        """One, without labels."""
        return "vector(1)"


_SYNTHETIC_JOBS = select(training.JOB_INFO, eq(JOB_CLASS, SYNTHETIC_CLASS))


class CanarySeen(Condition):
    """Jobs of `lockstep canary` whose deliberate loss that is not a number came through."""

    def expression(self, windows: ScrapeWindows) -> str:
        """Such steps of each of its jobs."""
        # They count from the first sample on: what counts increases sees nothing of them.
        marked = by("max", select(training.NONFINITE_STEPS), *JOB_LABELS)
        return f"{marked} > 0 and {JOB_JOIN} {by('group', _SYNTHETIC_JOBS, *JOB_LABELS)}"


class CanarySilent(Condition):
    """Clusters whose canary ran within days, and has not been seen to fire for ``above``."""

    DETECTED_AFTER = "above"

    above: Window

    def expression(self, windows: ScrapeWindows) -> str:
        """Clusters with agents that have seen its jobs."""
        fires = (eq(foreign.ALERT_NAME, CANARY_ALERT), eq(foreign.ALERT_STATE, "firing"))
        fired = f"present_over_time({select(foreign.ALERTS, *fires)}[{self.above}])"
        ran = f"last_over_time({_SYNTHETIC_JOBS}[{_LEDGER_MEMORY}])"
        return f"{by('group', ran, CLUSTER)} unless {CLUSTER_JOIN} {by('group', fired, CLUSTER)}"
