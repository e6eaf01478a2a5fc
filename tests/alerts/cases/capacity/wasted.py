from lockstep_alerts.conditions.capacity.wasted import AllocatedIdle, DataStarved
from lockstep_catalogue import gpu

from ..case import Case, proves
from ..synthetic import JOB, Samples, Timing, sample_node, spends


@proves(DataStarved)
def data_starved(condition: DataStarved, timing: Timing) -> list[Case]:
    def waiting(ratio: float) -> list[Samples]:
        return spends({"data_wait": timing.counts(ratio), "productive": timing.counts(1 - ratio)})

    return [
        Case("it waits for data", waiting((1 + condition.above_ratio) / 2), JOB),
        Case("it waits for data a little", waiting(condition.above_ratio / 2)),
    ]


@proves(AllocatedIdle)
def allocated_idle(condition: AllocatedIdle, timing: Timing) -> list[Case]:
    def gpus(busy_ratio: float) -> list[Samples]:
        course = timing.steady(busy_ratio)
        return [sample_node(gpu.GPU_UTILIZATION, course, gpu=f"{i}", uuid=f"G{i}") for i in (0, 1)]

    owner = {"pci_bus_id": "", "mig_uuid": "", "job_id": "j1"}
    lasting = timing.steady(1)
    held = [
        sample_node(gpu.GPU_OWNER_INFO, lasting, gpu=f"{i}", uuid=f"G{i}", **owner) for i in (0, 1)
    ]
    idle, works = condition.below_ratio / 2, (1 + condition.below_ratio) / 2
    return [
        Case("its GPUs are idle", [*gpus(idle), *held], JOB),
        Case("its GPUs work", [*gpus(works), *held]),
        Case("nobody holds the idle GPUs", gpus(idle)),
    ]
