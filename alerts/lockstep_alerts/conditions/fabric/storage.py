"""Storage that many nodes share fails or crawls: checkpoints and data of all jobs are behind it."""

from typing import Annotated

from lockstep_alerts.conditions.joins import MACHINE_JOIN, ran_on
from lockstep_alerts.conditions.wide import Wide
from lockstep_alerts.reading.quantities import Window, number
from lockstep_catalogue import host
from lockstep_catalogue.labels import CLUSTER, FILESYSTEM, JOB_ID, NODE, SOURCE, VOLUME
from lockstep_catalogue.promql import by, increase, names, one_of, rate, select
from lockstep_catalogue.windows import ScrapeWindows

# Local disks have the same name on every node, and fail one by one.
_SHARED = one_of(FILESYSTEM, "nfs", "nfs4")
_VOLUME_JOIN = f"on ({names(CLUSTER, NODE, VOLUME)})"


class StorageDegraded(Wide):
    """Shared storage that fails or is slow on ``least_nodes`` nodes under jobs or more.

    Attributes:
        above_seconds: mean duration of a request, from which on the volume crawls.
    """

    DETECTED_AFTER = "window"
    CAUSE = "storage"
    PLACE = (CLUSTER, SOURCE)

    window: Window
    above_seconds: Annotated[float, number(0, 3600)]

    def hit(self, windows: ScrapeWindows) -> str:
        """Nodes under jobs that time out, get errors, or wait too long for a request, by source."""
        of_volume = (CLUSTER, NODE, VOLUME)
        spent = by("sum", rate(host.STORAGE_SECONDS, self.window.text), *of_volume)
        requests = by("sum", rate(host.STORAGE_REQUESTS, self.window.text), *of_volume)
        slow = f"{spent} / ({requests} > 0) > {self.above_seconds:g}"
        failing = " or ".join(
            f"{increase(counter, self.window.text)} > 0"
            for counter in (host.STORAGE_TIMEOUTS, host.STORAGE_ERRORS)
        )
        troubled = by("group", f"{slow}\nor\n{failing}", *of_volume)
        info = by("group", select(host.VOLUME_INFO, _SHARED), *of_volume, SOURCE)
        sources = by("group", f"{info} and {_VOLUME_JOIN} {troubled}", CLUSTER, NODE, SOURCE)
        return f"({sources} and {MACHINE_JOIN} {ran_on(windows)})"

    def explained(self, windows: ScrapeWindows) -> str:
        """Every job on a node that the source troubles, where it troubles enough of them."""
        wide = f"on ({names(*self.PLACE)}) ({self.expression(windows)})"
        jobs = f"{ran_on(windows)} and {MACHINE_JOIN} ({self.hit(windows)} and {wide})"
        return by("group", jobs, CLUSTER, JOB_ID)
