"""Cases of conditions on nodes of jobs."""

from lockstep_alerts.conditions.nodes import (
    GpuFatalError,
    GpuLinkDegraded,
    GpuThrottled,
    JobGpuDegraded,
    JobNodeFault,
    JobNodeLost,
    SharedNodeFault,
)
from lockstep_catalogue import agent, foreign, gpu, incidents, recorded, training
from lockstep_catalogue import incidents as incident_metrics

from .case import Case, proves
from .hardware_series import BUS_ID, driver_hangs, gpu_verdict, holds_gpu
from .hardware_series import GPU as IDLE_GPU
from .synthetic import (
    JOB,
    JOB_NODE,
    MACHINE,
    Course,
    Samples,
    Timing,
    sample_node,
    samples,
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


@proves(JobNodeLost)
def job_node_lost(condition: JobNodeLost, timing: Timing) -> list[Case]:
    stands = timing.appears(60)

    def job(
        standing: Course | None, *, is_silent: bool = True, state: str = "training"
    ) -> list[Samples]:
        """A job of two nodes, of which the second falls silent at the onset."""
        until = timing.onset_seconds if is_silent else timing.fires_by_seconds
        series = [samples(recorded.STANDING, standing, **JOB)] if standing else []
        for node, seconds in (("n1", timing.fires_by_seconds), ("n2", until)):
            series += [
                sample_node(agent.AGENT_INFO, steady(1, seconds), node, version="1"),
                sample_node(training.RANKS, steady(1, seconds), node, job_id="j1", state=state),
            ]
        return series

    lost = {**JOB, "node": "n2"}
    ready = {"node": "n2", "condition": "Ready", "status": "true"}
    not_ready = samples(foreign.KUBE_NODE_CONDITION, timing.steps_up(0, 1), **ready)
    return [
        Case("a node is silent, and the job stands", job(stands), lost),
        Case("Kubernetes misses the node", [*job(None, is_silent=False), not_ready], lost),
        Case("an agent is restarted, and the job goes on", job(None)),
        Case("the job ended before", job(stands, state="done")),
    ]


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


@proves(GpuFatalError)
def gpu_fatal_error(condition: GpuFatalError, timing: Timing) -> list[Case]:
    lost = gpu_verdict(timing, "failed", "lost")
    grows = timing.steps_up()
    memory = sample_node(incident_metrics.HOST_INCIDENTS, grows, host_incident="memory_uncorrected")
    lockup = sample_node(incident_metrics.HOST_INCIDENTS, grows, host_incident="soft_lockup")
    return [
        Case("an idle GPU is lost", [lost], MACHINE),
        Case("the memory of the host has an error", [memory], MACHINE),
        Case("a GPU is lost that a job holds", [lost, holds_gpu(timing)]),
        Case("a processor hangs for a while", [lockup]),
    ]


@proves(GpuLinkDegraded)
def gpu_link_degraded(condition: GpuLinkDegraded, timing: Timing) -> list[Case]:
    lost = gpu_verdict(timing, "degraded", "nvlink_down")
    return [
        Case("a link of an idle GPU is lost", [lost], {**MACHINE, "gpu": "3"}),
        Case("a job holds the GPU", [lost, holds_gpu(timing)]),
    ]


@proves(GpuThrottled)
def gpu_throttled(condition: GpuThrottled, timing: Timing) -> list[Case]:
    named = {**MACHINE, "gpu": "3", "throttle": "hw_thermal"}

    def held(seconds_a_second: float, reason: str) -> list[Samples]:
        course = timing.grows(seconds_a_second)
        return [sample_node(gpu.GPU_THROTTLE_SECONDS, course, **IDLE_GPU, throttle=reason)]

    return [
        Case("it is too hot", held(1, "hw_thermal"), named),
        Case("it is too hot now and then", held(condition.above_ratio / 2, "hw_thermal")),
        Case("it is at its power limit", held(1, "sw_power_cap")),
    ]
