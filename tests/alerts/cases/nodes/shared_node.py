from lockstep_alerts.conditions.nodes.shared_node import SharedNodeFault

from ..case import Case, proves
from ..hardware_series import driver_hangs
from ..synthetic import MACHINE, Samples, Timing, trains


@proves(SharedNodeFault)
def shared_node_fault(condition: SharedNodeFault, timing: Timing) -> list[Case]:
    def hung(jobs: int) -> list[Samples]:
        return [
            *(trains(timing, job_id=f"j{number}") for number in range(jobs)),
            driver_hangs(timing),
        ]

    return [
        Case("its jobs", hung(condition.least_jobs), MACHINE),
        Case("one job fewer", hung(condition.least_jobs - 1)),
    ]
