"""A node that fails under several jobs is one incident: one page for the node, and none a job."""

from typing import Annotated

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.evidence import listing
from lockstep_alerts.conditions.gpu_signs import JUDGED_EVERY_SECONDS
from lockstep_alerts.reading.quantities import whole_number
from lockstep_catalogue import foreign
from lockstep_catalogue.labels import CLUSTER, JOB_ID, NODE
from lockstep_catalogue.promql import Matcher, by, eq, has, one_of, select
from lockstep_catalogue.windows import ScrapeWindows

SINGLE_JOB_ALERTS = ("TrainJobNodeFault", "TrainJobNodeLost")
"""Alerts that name one job and its node; rules of a group are evaluated in order, these first."""


def _jobs(*matchers: Matcher) -> str:
    firing = (one_of(foreign.ALERT_NAME, *SINGLE_JOB_ALERTS), eq(foreign.ALERT_STATE, "firing"))
    return by(
        "group",
        select(foreign.ALERTS, *firing, has(NODE), *matchers),
        CLUSTER,
        NODE,
        JOB_ID,
    )


class SharedNodeFault(Condition):
    """Nodes whose fault stops ``least_jobs`` jobs or more.

    Attributes:
        least_jobs: hit by the node at one time, from which on the page is the node's.
    """

    DETECTED_AFTER = JUDGED_EVERY_SECONDS

    least_jobs: Annotated[int, whole_number(1, 100)]

    def expression(self, windows: ScrapeWindows) -> str:
        """Number of jobs that each faulty node hits."""
        return f"{by('count', _jobs(), CLUSTER, NODE)} >= {self.least_jobs}"

    def evidence(self) -> str:
        """Asks Prometheus which jobs the node hits."""
        on_node = (eq(CLUSTER, "%[1]s"), eq(NODE, "%[2]s"))
        return f"Jobs: {listing(_jobs(*on_node), '{{ $series.Labels.job_id }}', CLUSTER, NODE)}"
