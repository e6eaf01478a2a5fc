from lockstep_alerts.conditions.capacity.monitor_cost import MonitorCost
from lockstep_catalogue import recorded, training

from ..case import Case, proves
from ..synthetic import JOB, Samples, Timing, sample_node, samples


@proves(MonitorCost)
def monitor_cost(condition: MonitorCost, timing: Timing) -> list[Case]:
    def job(ratio: float) -> list[Samples]:
        return [
            sample_node(training.MEASURED_SECONDS, timing.counts(ratio), job_id="j1"),
            sample_node(training.MEASURED_STEPS, timing.counts(1), job_id="j1"),
            samples(recorded.STEP_MEAN, timing.steady(1), **JOB),
        ]

    return [
        Case("it costs too much", job(2 * condition.above_ratio), JOB),
        Case("it costs little", job(condition.above_ratio / 2)),
    ]
