"""Telemetry of jobs that should be there and is not, and parts of agents that do not work."""

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.joins import CLUSTER_JOIN, JOB_JOIN, JOB_LABELS, RUNNING, num_ranks
from lockstep_alerts.reading.quantities import Ratio, Window
from lockstep_catalogue import agent, ledger, training
from lockstep_catalogue.labels import CLUSTER, NODE, STATE
from lockstep_catalogue.promql import by, eq, increase, one_of, select
from lockstep_catalogue.windows import ScrapeWindows


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
