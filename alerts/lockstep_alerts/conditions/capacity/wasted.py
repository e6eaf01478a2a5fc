"""GPUs that are paid for and do not work: the job waits for data, or does nothing at all."""

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.gpu_signs import GPU_JOIN
from lockstep_alerts.conditions.joins import JOB_LABELS
from lockstep_alerts.reading.quantities import Ratio, Window
from lockstep_catalogue import gpu, training
from lockstep_catalogue.gpu import GPU_OWNER_INFO
from lockstep_catalogue.labels import GOODPUT, JOB_ID, MIG_UUID, NODE, UUID
from lockstep_catalogue.promql import by, eq, has, rate, select
from lockstep_catalogue.windows import ScrapeWindows


class DataStarved(Condition):
    """Jobs whose ranks spend more than ``above_ratio`` of the wall clock waiting for data.

    Attributes:
        window: over which the share is taken.
        above_ratio: share of the ranks' wall clock spent waiting for the next batch.
    """

    DETECTED_AFTER = "window"

    window: Window
    above_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Share of the wall clock of a job's ranks spent waiting for data."""
        waited = rate(training.GOODPUT_SECONDS, self.window.text, eq(GOODPUT, "data_wait"))
        spent = rate(training.GOODPUT_SECONDS, self.window.text)
        share = f"{by('sum', waited, *JOB_LABELS)} / ({by('sum', spent, *JOB_LABELS)} > 0)"
        return f"{share} > {self.above_ratio:g}"


class AllocatedIdle(Condition):
    """Jobs whose GPUs were used less than ``below_ratio`` on average for ``window``.

    Attributes:
        window: for which the GPUs were idle.
        below_ratio: mean utilization of the job's GPUs.
    """

    DETECTED_AFTER = "window"

    window: Window
    below_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Mean utilization of the GPUs that a job has held for the whole window."""
        busy = f"avg_over_time({select(gpu.GPU_UTILIZATION)}[{self.window}])"
        # A GPU that was allocated later has been another one's for a part of the window.
        owner = select(GPU_OWNER_INFO, has(JOB_ID), eq(MIG_UUID, ""))
        since = f"({owner} and {owner} offset {self.window})"
        held = by("group", since, *JOB_LABELS, NODE, UUID)
        share = f"{busy} * {GPU_JOIN} group_right () {held}"
        return f"{by('avg', share, *JOB_LABELS)} < {self.below_ratio:g}"
