"""A job will not be done by its deadline at the pace of the last hour."""

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.joins import JOB_JOIN, JOB_LABELS, select_training_jobs
from lockstep_alerts.reading.quantities import Ratio, Window
from lockstep_catalogue import ledger, recorded, training
from lockstep_catalogue.promql import by, select
from lockstep_catalogue.windows import ScrapeWindows


class DeadlineAtRisk(Condition):
    """Jobs that will miss their deadline at the pace of ``window``.

    Attributes:
        window: whose pace is taken to go on.
        slack_ratio: of the time that is left, by which the forecast must miss it.
    """

    window: Window
    slack_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Seconds after the deadline at which each job will be done that is later than that.

        The tokens of earlier attempts may have been counted on other nodes, the steps are not
        lost: tokens so far are the step times tokens a step, and tokens a step are tokens a second
        times seconds a step.
        """
        pace = f"avg_over_time({select(recorded.TOKENS_RATE)}[{self.window}])"
        step_seconds = f"avg_over_time({select(recorded.STEP_MEAN)}[{self.window}])"
        spent = f"({by('max', select(training.STEP), *JOB_LABELS)} * {JOB_JOIN} {step_seconds})"
        declared = by("max", select(ledger.JOB_TOKENS), *JOB_LABELS)
        needed = f"({declared} / {JOB_JOIN} ({pace} > 0) - {JOB_JOIN} {spent})"
        left = f"({by('max', select(ledger.JOB_DEADLINE), *JOB_LABELS)} - time())"
        late = f"{needed} > {JOB_JOIN} ({1 + self.slack_ratio:g} * {left})"
        return f"({late}) - {JOB_JOIN} {left}\nand {select_training_jobs()}"
