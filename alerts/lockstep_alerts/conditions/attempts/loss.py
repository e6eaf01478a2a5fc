"""The loss of a job spikes or diverges, by the detector in each rank's own monitor."""

from lockstep_alerts.conditions.condition import Case, Condition
from lockstep_alerts.conditions.joins import JOB_LABELS
from lockstep_alerts.conditions.synthetic import JOB, Samples, Timing, sample_node
from lockstep_catalogue import training
from lockstep_catalogue.labels import ANOMALY
from lockstep_catalogue.metric import Metric
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

    def cases(self, timing: Timing) -> list[Case]:
        def counted(metric: Metric, anomaly: str, to: int) -> list[Samples]:
            return [sample_node(metric, timing.steps_up(to), job_id="j1", anomaly=anomaly)]

        diverges, spike = {**JOB, "anomaly": "divergence"}, {**JOB, "anomaly": "spike"}
        return [
            Case("it diverges", counted(training.ANOMALOUS, "divergence", 4), diverges),
            Case("it spikes", counted(training.ANOMALIES, "spike", 1), spike),
            Case("it is well", counted(training.ANOMALOUS, "divergence", 0)),
        ]
