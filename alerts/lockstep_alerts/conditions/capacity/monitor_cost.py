"""The monitor itself takes more of a job's steps than it promises: information, and no ticket."""

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.joins import JOB_JOIN, JOB_LABELS, recent
from lockstep_alerts.reading.quantities import Ratio, Window
from lockstep_catalogue import recorded, training
from lockstep_catalogue.promql import by, rate
from lockstep_catalogue.windows import ScrapeWindows


class MonitorCost(Condition):
    """Jobs whose monitor takes more than ``above_ratio`` of the mean step.

    Attributes:
        window: over which the cost is taken.
        above_ratio: of a step, that the monitor's own calls take.
    """

    DETECTED_AFTER = "window"

    window: Window
    above_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Share of the mean step in the monitor's own calls, by the steps that it timed."""
        spent = by("sum", rate(training.MEASURED_SECONDS, self.window.text), *JOB_LABELS)
        steps = by("sum", rate(training.MEASURED_STEPS, self.window.text), *JOB_LABELS)
        share = f"{spent} / ({steps} > 0) / {JOB_JOIN} {recent(recorded.STEP_MEAN, windows)}"
        return f"{share} > {self.above_ratio:g}"
