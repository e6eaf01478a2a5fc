"""One cause under several nodes: one page that lists the jobs, and their own alerts keep quiet.

What is hit is always a job and a node on which it has ranks: idle and drained nodes explain
nothing, and a job elsewhere in the cluster keeps its pages.
"""

from typing import Annotated, ClassVar

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.evidence import listing
from lockstep_alerts.conditions.gpu_signs import JUDGED_EVERY_SECONDS
from lockstep_alerts.reading.quantities import whole_number
from lockstep_catalogue import foreign
from lockstep_catalogue.labels import CLUSTER, JOB_ID, NODE
from lockstep_catalogue.metric import Label
from lockstep_catalogue.promql import Matcher, by, eq, names, one_of, select
from lockstep_catalogue.windows import ScrapeWindows

MOST_NAMED = 32
"""A page is read on a telephone."""


class Wide(Condition):
    """Places in which ``least_nodes`` nodes under jobs or more are hit at the same time.

    Attributes:
        CAUSE: the word for it.
        PLACE: labels of what the nodes share.
        OF_NODES: names of the alerts on the single nodes.
        least_nodes: hit at the same time, from which on it is one cause.
    """

    DETECTED_AFTER: ClassVar[int | str] = JUDGED_EVERY_SECONDS
    CAUSE: ClassVar[str] = ""
    PLACE: ClassVar[tuple[Label, ...]] = (CLUSTER,)
    OF_NODES: ClassVar[tuple[str, ...]] = ()

    least_nodes: Annotated[int, whole_number(1, 10_000)]

    def hit(self, windows: ScrapeWindows) -> str:
        """Jobs and nodes that are hit, with the place."""
        raise NotImplementedError

    def expression(self, windows: ScrapeWindows) -> str:
        """Number of nodes of each place that are hit."""
        nodes = by("group", self.hit(windows), *dict.fromkeys((*self.PLACE, NODE)))
        return f"{by('count', nodes, *self.PLACE)} >= {self.least_nodes}"

    def explained(self, windows: ScrapeWindows) -> str:
        """The jobs that it explains, one series each."""
        jobs = by("group", self.hit(windows), *dict.fromkeys((*self.PLACE, JOB_ID)))
        wide = f"on ({names(*self.PLACE)}) ({self.expression(windows)})"
        return by("group", f"{jobs} and {wide}", CLUSTER, JOB_ID)

    def evidence(self) -> str:
        """Asks Prometheus which jobs and nodes are hit, by the alerts on the single ones."""
        job, node = "{{ $series.Labels.job_id }}", "{{ $series.Labels.node }}"
        jobs = _alerts(("TrainJobExplained",), eq(foreign.ALERT_CAUSE, self.CAUSE))
        found = listing(jobs, job, CLUSTER, before="Jobs: ", most=MOST_NAMED)
        if self.OF_NODES:
            nodes = by("group", _alerts(self.OF_NODES), NODE)
            found += " " + listing(nodes, node, CLUSTER, before="Nodes: ", most=MOST_NAMED)
        return found


def _alerts(alerts: tuple[str, ...], *matchers: Matcher) -> str:
    here = (one_of(foreign.ALERT_NAME, *alerts), *matchers, eq(CLUSTER, "%s"))
    return select(foreign.ALERTS, *here)
