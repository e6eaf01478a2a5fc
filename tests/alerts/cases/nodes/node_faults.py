from lockstep_alerts.conditions.nodes.node_faults import JobGpuDegraded, JobNodeFault
from lockstep_catalogue import incidents

from ..case import Case, proves
from ..hardware_series import BUS_ID, driver_hangs, gpu_verdict, holds_gpu
from ..synthetic import (
    JOB_NODE,
    Samples,
    Timing,
    sample_node,
    steady,
    trains,
)


@proves(JobNodeFault)
def job_node_fault(condition: JobNodeFault, timing: Timing) -> list[Case]:
    running, lost = _running(timing), gpu_verdict(timing, "failed", "lost")
    return [
        Case("a GPU is lost", [*running, lost], JOB_NODE),
        Case("a fatal Xid", [*running, *_xid(timing, "79", "fatal")], JOB_NODE),
        Case("the driver hangs", [*running, driver_hangs(timing)], JOB_NODE),
        Case("an Xid of the program", [*running, *_xid(timing, "31", "error")]),
        Case("a GPU is lost that nobody holds", [lost]),
    ]


@proves(JobGpuDegraded)
def job_gpu_degraded(condition: JobGpuDegraded, timing: Timing) -> list[Case]:
    running = _running(timing)
    hot = gpu_verdict(timing, "degraded", "thermal")
    lost = gpu_verdict(timing, "degraded", "nvlink_down")
    return [
        Case("a GPU is too hot", [*running, hot], JOB_NODE),
        Case("a link is lost", [*running, lost], JOB_NODE),
        Case("a row waits", [*running, gpu_verdict(timing, "degraded", "remap_pending")]),
        Case("a GPU is too hot that nobody holds", [hot]),
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


def _running(timing: Timing) -> list[Samples]:
    """A rank of the job that trains on the GPU."""
    return [trains(timing), holds_gpu(timing)]
