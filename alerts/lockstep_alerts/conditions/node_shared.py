"""One node takes several jobs down: one page for all of them."""

from dataclasses import dataclass
from typing import ClassVar, Self

from lockstep_alerts.conditions.condition import Timing
from lockstep_alerts.conditions.gpu_signs import JUDGED_EVERY_SECONDS
from lockstep_alerts.conditions.immediate import Immediate, Outline, listing, of_node
from lockstep_alerts.conditions.node_faults import jobs_on_failed_nodes
from lockstep_alerts.conditions.node_lost import jobs_on_lost_nodes
from lockstep_alerts.conditions.placed import runs_on
from lockstep_alerts.entry import Entry
from lockstep_alerts.model import Duration
from lockstep_alerts.synthetic import Samples, steady
from lockstep_catalogue import training, verdicts
from lockstep_catalogue.labels import CLUSTER, NODE
from lockstep_catalogue.promql import by, eq
from lockstep_catalogue.windows import ScrapeWindows


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFault(Immediate):
    """Limits of the condition.

    Attributes:
        window: how long after a fatal Xid its GPU counts as faulty.
        least_jobs: that the node carries, from which on the page is the node's and not theirs.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("window", "least_jobs")
    window: Duration
    least_jobs: int

    @classmethod
    def read(cls, entry: Entry) -> Self:
        """The limits of an entry."""
        return cls(
            window=entry.window("window"), least_jobs=round(entry.number("least_jobs", 1, 1000))
        )

    def expression(self, windows: ScrapeWindows) -> str:
        """Number of jobs on each node that has failed or is gone."""
        hit = f"{jobs_on_failed_nodes(windows, self.window)}\nor\n{jobs_on_lost_nodes(windows)}"
        return f"{by('count', hit, CLUSTER, NODE)} >= {self.least_jobs}"

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """The agent's judgement, or a live window without its samples."""
        return max(JUDGED_EVERY_SECONDS, windows.live_seconds)

    def evidence(self) -> str:
        """Asks Prometheus which jobs still have ranks there."""
        here = runs_on(eq(CLUSTER, "%[1]s"), eq(NODE, "%[2]s"))
        return listing(here, "{{ $series.Labels.job_id }}", CLUSTER, NODE)

    def outlines(self, timing: Timing) -> list[Outline]:
        """A driver hangs under several jobs, and under one fewer."""
        hangs = of_node(
            verdicts.NODE_HEALTH,
            steady(1, timing.fires_by_seconds, timing.onset_seconds),
            verdict="failed",
            node_reason="driver_hung",
        )

        def jobs(number: int) -> list[Samples]:
            lasting = steady(1, timing.fires_by_seconds)
            return [
                of_node(training.RANKS, lasting, job_id=f"j{i}", state="training")
                for i in range(number)
            ]

        node = {"cluster": "c1", "node": "n1"}
        return [
            Outline("several jobs are on the node", [hangs, *jobs(self.least_jobs)], node),
            Outline("one job fewer is", [hangs, *jobs(self.least_jobs - 1)]),
        ]
