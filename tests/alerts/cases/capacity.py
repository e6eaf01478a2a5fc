"""Cases of conditions on what jobs are given and use."""

from lockstep_alerts.conditions.capacity import (
    AllocatedIdle,
    Contention,
    DataStarved,
    DeadlineAtRisk,
    MonitorCost,
    NodePressure,
    PodEvicted,
    QueueWait,
    WorkAtRisk,
)
from lockstep_catalogue import foreign, gpu, host, ledger, recorded, training
from lockstep_catalogue.metric import Metric

from .case import Case, proves
from .synthetic import (
    JOB,
    JOB_NODE,
    Course,
    Samples,
    Stretch,
    Timing,
    growing,
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


_NAMED = {"cluster": "c1", "queue": "q1"}
_GROUP = {"instance": "ledger:9450", **_NAMED, "project": "p1", "job_class": "pretraining"}


@proves(QueueWait)
def queue_wait(condition: QueueWait, timing: Timing) -> list[Case]:
    many = condition.least_starts + 1
    stuck = _waits(timing, 0, 0, 3, condition.window.seconds)
    later = timing.fires_by_seconds + condition.window.seconds
    return [
        Case("jobs wait long", _waits(timing, many, many, 0), _NAMED),
        Case("none starts", stuck, {"cluster": "c1"}, later),
        Case("jobs start soon", _waits(timing, many, 0, 0)),
        Case("nothing waits", _waits(timing, 0, 0, 0)),
    ]


def _waits(
    timing: Timing, num_starts: int, num_long: int, pending: int, longer_seconds: int = 0
) -> list[Samples]:
    """A ledger that counts starts at the onset, some of them after a long wait."""

    def counted(number: int) -> Course:
        after_seconds = timing.fires_within_seconds + longer_seconds
        return growing(
            Stretch(timing.onset_seconds, 0), Stretch(1, number), Stretch(after_seconds, 0)
        )

    buckets = {"60.0": num_starts - num_long, "86400.0": num_starts, "+Inf": num_starts}
    lasting = steady(pending, timing.fires_by_seconds + longer_seconds)
    return [
        *(
            samples(ledger.QUEUE_WAIT, counted(count), "_bucket", **_GROUP, le=bound)
            for bound, count in buckets.items()
        ),
        samples(ledger.JOBS_STARTED, counted(num_starts), **_GROUP),
        samples(ledger.JOBS, lasting, instance="ledger:9450", cluster="c1", job_status="pending"),
    ]


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
    every = range(condition.least_gpus)

    def gpus(busy_ratio: float) -> list[Samples]:
        course = timing.steady(busy_ratio)
        return [sample_node(gpu.GPU_UTILIZATION, course, gpu=f"{i}", uuid=f"G{i}") for i in every]

    owner = {"pci_bus_id": "", "mig_uuid": "", "job_id": "j1"}
    lasting = timing.steady(1)
    held = [
        sample_node(gpu.GPU_OWNER_INFO, lasting, gpu=f"{i}", uuid=f"G{i}", **owner) for i in every
    ]
    idle, works = condition.below_ratio / 2, (1 + condition.below_ratio) / 2
    return [
        Case("its GPUs are idle", [*gpus(idle), *held], JOB),
        Case("its GPUs work", [*gpus(works), *held]),
        Case("nobody holds the idle GPUs", gpus(idle)),
        Case("a notebook holds them", [*gpus(idle), *held[1:]]),
    ]


_TOKENS_A_SECOND, _STEP_SECONDS = 1e5, 10.0
_STEP = 1000


@proves(DeadlineAtRisk)
def deadline_at_risk(condition: DeadlineAtRisk, timing: Timing) -> list[Case]:
    late = _job_with_deadline(timing, 0.5)
    return [
        Case("it will be late", late, JOB),
        Case("it will be in time", _job_with_deadline(timing, 2)),
        Case("it has no deadline", late[:-1]),
    ]


def _job_with_deadline(timing: Timing, left_ratio: float) -> list[Samples]:
    """A job that needs a day more, with so many times a day left."""
    lasting, day_seconds = timing.fires_by_seconds, 86_400
    declared = _TOKENS_A_SECOND * (_STEP * _STEP_SECONDS + day_seconds)
    of_ledger = {"instance": "ledger:9450", **JOB}
    deadline = steady(lasting + day_seconds * left_ratio, lasting)
    return [
        trains(timing, 8),
        samples(recorded.TOKENS_RATE, steady(_TOKENS_A_SECOND, lasting), **JOB),
        samples(recorded.STEP_MEAN, steady(_STEP_SECONDS, lasting), **JOB),
        sample_node(training.STEP, steady(_STEP, lasting), job_id="j1"),
        samples(ledger.JOB_TOKENS, steady(declared, lasting), **of_ledger),
        samples(ledger.JOB_DEADLINE, deadline, **of_ledger),
    ]


@proves(WorkAtRisk)
def work_at_risk(condition: WorkAtRisk, timing: Timing) -> list[Case]:
    """The work and what is usual are the recorded series' of another group."""
    gpus, hour = 8, 3600.0
    budget = 1.1 * max(condition.budget_gpu_hours, condition.budget_hours * gpus)
    size = sample_node(training.WORLD_RANKS, timing.steady(gpus), job_id="j1")

    def job(at_risk: float, usual: float | None = None) -> list[Samples]:
        series = [size, samples(recorded.WORK_AT_RISK, timing.steady(at_risk * hour), **JOB)]
        if usual is not None:
            series.append(samples(recorded.USUAL_AT_RISK, timing.steady(usual * hour), **JOB))
        return series

    usual, first = condition.least_hours * gpus, -condition.hours_before * gpus
    return [
        Case("much more than usual", job(1.1 * condition.times_usual * usual, usual), JOB),
        Case("it has never written", job(budget), JOB),
        Case("less than that", job(0.9 * condition.times_usual * usual, usual)),
        Case("less than an hour of it", job(0.9 * usual, usual / 10)),
        Case(
            "much more than the first interval",
            job(-1.1 * condition.times_before * first, first),
            JOB,
        ),
        Case("the first interval was short", job(0.9 * condition.hours_before * gpus, first / 100)),
        Case("it has not yet written", job(budget / 2)),
        Case("that much is usual", job(budget, budget)),
    ]


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
