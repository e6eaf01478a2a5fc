"""The loss of a job spikes or diverges, by the detector in each rank's own monitor."""

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.joins import JOB_LABELS
from lockstep_catalogue import training
from lockstep_catalogue.labels import ANOMALY
from lockstep_catalogue.promql import by, increase, select
from lockstep_catalogue.windows import ScrapeWindows


class LossAnomaly(Condition):
    """A rank's loss is anomalous now, or an anomaly began within the last window of scrapes."""

    def expression(self, windows: ScrapeWindows) -> str:
        """Number of anomalous ranks by job and kind; of a spike that has passed its beginnings."""
        lasting = f"{by('sum', select(training.ANOMALOUS), *JOB_LABELS, ANOMALY)} > 0"
        # A spike of a step or two is over before the next scrape.
        begun = increase(training.ANOMALIES, windows.cover(60))
        return f"{lasting}\nor\n{by('sum', begun, *JOB_LABELS, ANOMALY)} > 0"
