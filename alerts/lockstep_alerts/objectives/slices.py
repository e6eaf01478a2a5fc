"""A job that has become worse than it was: its slices are held against its own best hour."""

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.joins import JOB_LABELS
from lockstep_alerts.objectives.objective import Objective
from lockstep_alerts.rules.slices import SLICE_SECONDS
from lockstep_catalogue.ledger import SLO
from lockstep_catalogue.promql import by, eq, select
from lockstep_catalogue.recorded import SLICE_RATIO
from lockstep_catalogue.windows import ScrapeWindows


class SliceWorse(Condition):
    """The last five minutes of a job are worse than its best hour by more than the limit."""

    DETECTED_AFTER = SLICE_SECONDS

    objective: Objective
    min_ratio: float

    def expression(self, windows: ScrapeWindows) -> str:
        """How good the job is against its best hour."""
        # Without the objective's label: it is the job's alert, and no other job's.
        ratio = by("min", select(SLICE_RATIO, eq(SLO, self.objective.slo)), *JOB_LABELS)
        return f"{ratio} < {self.min_ratio:g}"
