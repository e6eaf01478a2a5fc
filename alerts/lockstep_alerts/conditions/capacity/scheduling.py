"""The queue, preemptions and resumes of a whole cluster, by the ledger's counters."""

from typing import Annotated

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.reading.quantities import Ratio, Window, whole_number
from lockstep_catalogue import ledger
from lockstep_catalogue.labels import CLUSTER, QUEUE, RESTORE_OUTCOME
from lockstep_catalogue.metric import Metric
from lockstep_catalogue.promql import by, eq, histogram_quantile, increase, select
from lockstep_catalogue.windows import ScrapeWindows

_QUEUE = (CLUSTER, QUEUE)
_QUANTILE = 0.9


class QueueWait(Condition):
    """Queues in which one job in ten waits longer than ``above``, or none starts.

    Attributes:
        window: over which starts are counted, and in which one at least must be while jobs wait.
        above_seconds: the wait that nine of ten jobs stay below.
        least_starts: jobs that started within the window; fewer say nothing about nine of ten.
    """

    window: Window
    above: Window
    least_starts: Annotated[int, whole_number(0, 10_000)]

    def expression(self, windows: ScrapeWindows) -> str:
        """Wait in seconds by queue; 0 of a cluster in which jobs wait and none starts."""
        window = self.window.text
        wait = histogram_quantile(_QUANTILE, ledger.QUEUE_WAIT, window, *_QUEUE)
        starts = by("sum", increase(ledger.JOBS_STARTED, window), *_QUEUE)
        long = f"{wait} > {self.above.seconds} and {starts} > {self.least_starts - 0.5}"
        pending = select(ledger.JOBS, eq(ledger.JOB_STATUS, "pending"))
        waiting = f"min_over_time({pending}[{window}]) > 0 and {pending} offset {window} > 0"
        stuck = f"{by('sum', increase(ledger.JOBS_STARTED, window), CLUSTER)} < 0.5"
        return f"{long}\nor\n{stuck} and on (cluster) {waiting}"


class PreemptionLoss(Condition):
    """Queues in which preemptions lose more than ``above_ratio`` of the GPU time.

    Attributes:
        window: over which the loss is taken.
        above_ratio: GPU time that preemptions threw away, of all that was allocated.
    """

    window: Window
    above_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Share of the allocated GPU time that was lost by preemptions, by queue."""

        def increase_by_queue(metric: Metric) -> str:
            return by("sum", increase(metric, self.window.text), *_QUEUE)

        lost = increase_by_queue(ledger.PREEMPTION_LOST)
        spent = increase_by_queue(ledger.GPU_SECONDS)
        preempted = increase_by_queue(ledger.PREEMPTIONS)
        return f"{lost} / ({spent} > 0) > {self.above_ratio:g} and {preempted} > 1.5"


class ResumedOlder(Condition):
    """Queues in which a job resumed from an older checkpoint within ``window``."""

    window: Window

    def expression(self, windows: ScrapeWindows) -> str:
        """Resumes by queue that had to pass over a newer checkpoint."""
        older = increase(ledger.RESUMES, self.window.text, eq(RESTORE_OUTCOME, "fallback"))
        return f"{by('sum', older, *_QUEUE)} > 0.5"
