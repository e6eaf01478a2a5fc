from lockstep_alerts.conditions.attempts.loss import LossAnomaly
from lockstep_catalogue import training
from lockstep_catalogue.metric import Metric

from ..case import Case, proves
from ..synthetic import JOB, Samples, Timing, sample_node


@proves(LossAnomaly)
def loss_anomaly(condition: LossAnomaly, timing: Timing) -> list[Case]:
    def counted(metric: Metric, anomaly: str, to: int) -> list[Samples]:
        return [sample_node(metric, timing.steps_up(to), job_id="j1", anomaly=anomaly)]

    diverges, spike = {**JOB, "anomaly": "divergence"}, {**JOB, "anomaly": "spike"}
    return [
        Case("it diverges", counted(training.ANOMALOUS, "divergence", 4), diverges),
        Case("it spikes", counted(training.ANOMALIES, "spike", 1), spike),
        Case("it is well", counted(training.ANOMALOUS, "divergence", 0)),
    ]
