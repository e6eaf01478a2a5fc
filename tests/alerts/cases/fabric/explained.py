from lockstep_alerts.conditions.fabric.explained import Explained, NodesLost, PowerCapped

from ..case import Case, proves
from ..hardware_series import driver_hangs, gpu_verdict, holds_gpu, on_nodes
from ..synthetic import JOB, Samples, Timing, trains


@proves(NodesLost)
def nodes_lost(condition: NodesLost, timing: Timing) -> list[Case]:
    def hung(node: str) -> tuple[Samples, ...]:
        return trains(timing, 1, node, f"j-{node}"), driver_hangs(timing, node)

    return [
        Case("many nodes fail", on_nodes(condition.least_nodes, hung), {"cluster": "c1"}),
        Case("one node fewer", on_nodes(condition.least_nodes - 1, hung)),
    ]


@proves(PowerCapped)
def power_capped(condition: PowerCapped, timing: Timing) -> list[Case]:
    def capped(node: str, reason: str = "power_capped") -> tuple[Samples, ...]:
        return holds_gpu(timing, node), gpu_verdict(timing, "degraded", reason, node)

    def hot(node: str) -> tuple[Samples, ...]:
        return capped(node, "thermal")

    return [
        Case("many nodes are capped", on_nodes(condition.least_nodes, capped), {"cluster": "c1"}),
        Case("one node fewer", on_nodes(condition.least_nodes - 1, capped)),
        Case("GPUs are hot", on_nodes(condition.least_nodes, hot)),
    ]


@proves(Explained)
def explained(condition: Explained, timing: Timing) -> list[Case]:
    def hung(node: str) -> tuple[Samples, ...]:
        return trains(timing, 1, node), driver_hangs(timing, node)

    explained = {**JOB, "cause": "nodes"}
    return [
        Case("nodes fail", on_nodes(condition.least_nodes, hung), explained),
        Case("one node fewer", on_nodes(condition.least_nodes - 1, hung)),
    ]
