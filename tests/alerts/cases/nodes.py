"""Cases of conditions on nodes of jobs."""

from lockstep_alerts.conditions.nodes import GpuDegraded, GpuThrottled, NodeFault, NodeLost
from lockstep_catalogue import foreign, gpu, incidents, recorded

from .case import Case, proves
from .hardware_series import BUS_ID, GPU, driver_hangs, gpu_verdict, holds_gpu
from .synthetic import JOB_NODE, MACHINE, Samples, Timing, sample_node, samples, steady, trains


@proves(NodeFault)
def node_fault(condition: NodeFault, timing: Timing) -> list[Case]:
    lost, grows = gpu_verdict(timing, "failed", "lost"), timing.steps_up()
    cordoned = samples(foreign.KUBE_CORDONED, timing.steady(1), **MACHINE)
    memory = sample_node(incidents.HOST_INCIDENTS, grows, host_incident="memory_uncorrected")
    lockup = sample_node(incidents.HOST_INCIDENTS, grows, host_incident="soft_lockup")
    return [
        Case("a GPU is lost", [lost, holds_gpu(timing)], MACHINE),
        Case("an idle GPU is lost", [lost], MACHINE),
        Case("a GPU of a drained node is reset", [lost, cordoned]),
        Case("a cordoned node still carries a job", [lost, cordoned, trains(timing)], MACHINE),
        Case("a fatal Xid", _xid(timing, "79", "fatal"), MACHINE),
        Case("the driver hangs", [driver_hangs(timing)], MACHINE),
        Case("the memory of the host has an error", [memory], MACHINE),
        Case("an Xid of the program", _xid(timing, "31", "error")),
        Case("a processor hangs for a while", [lockup]),
    ]


def _xid(timing: Timing, number: str, severity: str) -> list[Samples]:
    """An Xid at the onset: its time, and its meaning."""
    after, onset = timing.fires_by_seconds, timing.onset_seconds
    of_fault = {"pci_bus_id": BUS_ID, "mig": "", "xid": number}
    meaning = {"xid_class": "bus", "xid_severity": severity, "remedy": "restart_node"}
    return [
        sample_node(incidents.GPU_XID_LAST, steady(onset, after, onset), **of_fault),
        sample_node(incidents.GPU_XID_INFO, steady(1, after, onset), xid=number, **meaning),
    ]


@proves(NodeLost)
def node_lost(condition: NodeLost, timing: Timing) -> list[Case]:
    gone = samples(recorded.GONE, timing.appears(), **JOB_NODE)
    return [Case("a node is gone", [gone], JOB_NODE), Case("none is gone", [])]


@proves(GpuDegraded)
def gpu_degraded(condition: GpuDegraded, timing: Timing) -> list[Case]:
    named = {**MACHINE, "gpu": "3"}
    well = gpu_verdict(timing, "ok", "none", "n2")
    cordoned = samples(foreign.KUBE_CORDONED, timing.steady(1), **MACHINE)
    capped, others = (gpu_verdict(timing, "degraded", "power_capped", n) for n in ("n1", "n2"))
    more = [gpu_verdict(timing, "ok", "none", f"n{number}") for number in range(3, 6)]
    return [
        Case("a link is lost", [gpu_verdict(timing, "degraded", "nvlink_down"), well], named),
        Case("a row waits", [gpu_verdict(timing, "degraded", "remap_pending"), well], named),
        Case("its power is capped", [capped, well, *more], named),
        Case("the node is drained", [gpu_verdict(timing, "degraded", "remap_pending"), cordoned]),
        Case("the site runs below its power", [capped, others]),
        Case("it is well", [well]),
    ]


@proves(GpuThrottled)
def gpu_throttled(condition: GpuThrottled, timing: Timing) -> list[Case]:
    named = {**MACHINE, "gpu": "3"}

    def held(seconds_a_second: float, reason: str) -> list[Samples]:
        course = timing.grows(seconds_a_second)
        return [sample_node(gpu.GPU_THROTTLE_SECONDS, course, **GPU, throttle=reason)]

    return [
        Case("it is too hot", held(1, "hw_thermal"), named),
        Case("it is too hot now and then", held(condition.above_ratio / 2, "hw_thermal")),
        Case("it is at its power limit", held(1, "sw_power_cap")),
    ]
