from lockstep_alerts.conditions.capacity.contention import Contention, NodePressure, PodEvicted
from lockstep_catalogue import foreign, host, training
from lockstep_catalogue.metric import Metric

from ..case import Case, proves
from ..synthetic import (
    JOB_NODE,
    Samples,
    Timing,
    sample_node,
    samples,
    spends,
    steady,
    trains,
)


@proves(Contention)
def contention(condition: Contention, timing: Timing) -> list[Case]:
    def counts(metric: Metric, per_second: float, **labels: str) -> Samples:
        return sample_node(metric, timing.counts(per_second), job_id="j1", **labels)

    pressed = (1 + condition.pressure_ratio) / 2
    short = counts(host.JOB_PRESSURE_SECONDS, pressed, resource="cpu", pressure="some")
    waits = 2 * condition.harm_ratio
    held_back = spends({"data_wait": timing.counts(waits), "productive": timing.counts(1 - waits)})
    throttled = counts(host.JOB_THROTTLED_SECONDS, 2 * condition.throttled_ratio)
    queued = counts(training.RUN_QUEUE_SECONDS, 4 * condition.harm_ratio)
    return [
        Case("processors are short", [short, *held_back], JOB_NODE),
        Case("its limit keeps it back", [throttled, *held_back], JOB_NODE),
        Case("its loops wait for a core", [trains(timing, 2), queued], JOB_NODE),
        Case("processors are short and nobody pays", [short]),
        Case("loaders are slow for another reason", held_back),
    ]


@proves(NodePressure)
def node_pressure(condition: NodePressure, timing: Timing) -> list[Case]:
    runs, used = trains(timing, 2), (1 + condition.above_ratio) / 2

    def host_memory(left_ratio: float) -> list[Samples]:
        sizes = {host.MEMORY_TOTAL: 1e12, host.MEMORY_AVAILABLE: 1e12 * left_ratio}
        return [runs, *(sample_node(each, timing.steady(n)) for each, n in sizes.items())]

    job = [
        sample_node(host.JOB_MEMORY, timing.steady(1e11 * used), job_id="j1"),
        sample_node(host.JOB_MEMORY_LIMIT, timing.steady(1e11), job_id="j1"),
    ]
    some = {"job_id": "j1", "resource": "memory", "pressure": "some"}
    stalling = timing.counts(2 * condition.stall_ratio)
    stalls = sample_node(host.JOB_PRESSURE_SECONDS, stalling, **some)
    disk = {"node": "n1", "condition": "DiskPressure", "status": "true"}
    full_disk = samples(foreign.KUBE_NODE_CONDITION, timing.steady(1), **disk)
    return [
        Case("the host is short of memory", host_memory(condition.below_ratio / 2), JOB_NODE),
        Case("the job is near its limit", [*job, stalls], JOB_NODE),
        Case("page cache fills its limit", job),
        Case("Kubernetes finds the disk full", [runs, full_disk], JOB_NODE),
        Case("there is enough memory", host_memory(2 * condition.below_ratio)),
    ]


@proves(PodEvicted)
def pod_evicted(condition: PodEvicted, timing: Timing) -> list[Case]:
    pod = {"namespace": "ns1", "pod": "p1"}
    reason = {**pod, "reason": "Evicted"}
    later, onset = condition.window.seconds, timing.onset_seconds + condition.window.seconds
    lasting = timing.fires_by_seconds + later
    now = samples(foreign.KUBE_POD_REASON, steady(1, lasting, onset), **reason)
    other = samples(foreign.KUBE_POD_REASON, steady(0, lasting), **{**reason, "pod": "p2"})
    old = samples(foreign.KUBE_POD_REASON, steady(1, lasting + later), **reason)
    return [
        Case("it is evicted", [now, other], pod, lasting),
        Case("a fresh Prometheus sees it", [now], None, lasting),
        Case("it was evicted long ago", [old], None, lasting + later),
    ]
