from lockstep_alerts.conditions.nodes.idle_nodes import GpuFatalError, GpuLinkDegraded, GpuThrottled
from lockstep_catalogue import gpu
from lockstep_catalogue import incidents as incident_metrics

from ..case import Case, proves
from ..hardware_series import GPU as IDLE_GPU
from ..hardware_series import gpu_verdict, holds_gpu
from ..synthetic import MACHINE, Samples, Timing, sample_node


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
