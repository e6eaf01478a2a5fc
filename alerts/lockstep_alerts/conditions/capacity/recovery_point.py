"""The newest durable checkpoint grows older than it should: the recovery point is breached."""

from typing import Annotated

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.joins import JOB_JOIN, JOB_LABELS, num_ranks, recent
from lockstep_alerts.reading.quantities import Window, number
from lockstep_catalogue import recorded, training
from lockstep_catalogue.promql import by, select
from lockstep_catalogue.windows import ScrapeWindows

_HISTORY = "1d"
_RECORDED_SECONDS = 60  # slices of jobs are evaluated once a minute


class CheckpointStale(Condition):
    """Jobs whose newest durable checkpoint is older than ``intervals`` of their own intervals.

    Attributes:
        intervals: age of the newest checkpoint in mean intervals of the job's last day.
        at_least: the age that is never too old, of jobs that write every few seconds.
    """

    DETECTED_AFTER = "at_least"

    intervals: Annotated[float, number(1, 100)]
    at_least: Window

    def expression(self, windows: ScrapeWindows) -> str:
        """Age in seconds of the newest durable checkpoint of each job that is too old."""
        durable = select(training.LAST_CHECKPOINT)
        # The mean interval: what was gained over the changes that gained it.
        gained = f"(max_over_time({durable}[{_HISTORY}]) - min_over_time({durable}[{_HISTORY}]))"
        changes = f"changes({durable}[{_HISTORY}])"
        seen = by("max", f"{gained} / ({changes} > 0)", *JOB_LABELS)
        # What the recorded series remembers of a job that has written nothing for a day.
        interval = f"({seen} or {recent(recorded.CHECKPOINT_INTERVAL, windows, _RECORDED_SECONDS)})"
        age = f"(time() - {by('max', durable, *JOB_LABELS)})"
        moves = f"{num_ranks('training', 'checkpoint', 'eval')} > 0"
        return (
            f"{age} > {self.at_least.seconds}\n"
            f"and {age} > {JOB_JOIN} ({self.intervals:g} * {interval})\nand {JOB_JOIN} {moves}"
        )
