"""Scripts of whole incidents, each in a cluster of its own: what agents and ledger serve."""

from collections.abc import Iterable

from lockstep_alerts.conditions.signs import Signs
from lockstep_alerts.spec import Spec
from lockstep_catalogue import agent, incidents, training
from lockstep_catalogue.metric import Metric
from lockstep_catalogue.windows import ScrapeWindows

from ..cases.case import Case, find_cases
from ..cases.objectives import counts
from ..cases.synthetic import (
    Course,
    Placement,
    Samples,
    Stretch,
    Timing,
    growing,
    healthy,
    moving,
    present,
    ranks_late,
    samples,
    steady,
    stepping,
    training_job,
)
from .replay import in_cluster

ONSET_SECONDS = 40
END_SECONDS = 400
_AFTER_SECONDS = END_SECONDS - ONSET_SECONDS
_HANG_SECONDS = 35
"""From the fault to the hang that the agents report; in life it is two minutes at least."""
_TIMING = Timing(windows=ScrapeWindows(1), fires_within_seconds=_AFTER_SECONDS)


def _places(*nodes: str) -> tuple[Placement, ...]:
    """Four ranks, spread evenly over the nodes."""
    return tuple(Placement(nodes[rank * len(nodes) // 4]) for rank in range(4))


def _hangs(nodes: Iterable[str], onset_seconds: int) -> list[Samples]:
    """The agents of the nodes report a rank that hangs, from some seconds after the fault on."""
    begin = onset_seconds + _HANG_SECONDS
    age = growing(Stretch(END_SECONDS - begin, 1), start=120)
    late = Course(age.start, age.stretches, begin)
    return [
        _of_node(training.HANG_FIRST, late, node, job_id="j1", rank=f"{rank}", hang_phase="sync")
        for rank, node in enumerate(nodes)
    ]


def _of_node(metric: Metric, course: Course, node: str, **labels: str) -> Samples:
    return samples(metric, course, instance=f"{node}:9400", cluster="c1", node=node, **labels)


def _agents(*nodes: str, until_seconds: int = END_SECONDS) -> list[Samples]:
    series = []
    for node in nodes:
        series.append(_of_node(agent.AGENT_INFO, steady(1, until_seconds), node, version="1"))
        series.append(_of_node(agent.AGENT_TICK, growing(Stretch(until_seconds, 1)), node))
    return series


def _degraded(reason: str, *nodes: str) -> list[Samples]:
    labels = {"gpu": "0", "uuid": "GPU-0", "verdict": "degraded", "gpu_reason": reason}
    course = steady(1, END_SECONDS)
    return [_of_node(incidents.GPU_HEALTH, course, node, **labels) for node in nodes]


def linked() -> list[Samples]:
    """A GPU's slow link is a ticket for a long time when its job hangs."""
    return in_cluster("link", [*_stalled(), *_degraded("nvlink_slow", "n1")])


def capped() -> list[Samples]:
    """Power is capped on both nodes of a job, and then a rank is late."""
    places = _places("n1", "n2")
    late = ranks_late(_AFTER_SECONDS, {2: {"backward": 0.2}})
    job = training_job(healthy(ONSET_SECONDS), late, places=places)
    cap = _degraded("power_capped", "n1", "n2")
    return in_cluster("cap", [*_agents("n1", "n2"), *job, *cap])


def stall() -> list[Samples]:
    """A rank hangs; nothing else is wrong."""
    return in_cluster("stall", _stalled())


def _stalled() -> list[Samples]:
    places = _places("n1", "n2")
    return [
        *_agents("n1", "n2"),
        *present(END_SECONDS, places=places),
        *moving(Stretch(ONSET_SECONDS, 1), Stretch(END_SECONDS, 0), places=places),
        *stepping(healthy(ONSET_SECONDS), places=places),
        *_hangs(("n1", "n2"), ONSET_SECONDS),
    ]


def flapping() -> list[Samples]:
    """A rank is late and is not, in turns of ten seconds."""
    late = ranks_late(10, {2: {"data": 0.2}})
    regimes = [healthy(ONSET_SECONDS), ranks_late(40, {2: {"data": 0.2}})]
    for _ in range(9):
        regimes += [healthy(10), late]
    rest = END_SECONDS - sum(regime.seconds for regime in regimes)
    return in_cluster("flapping", training_job(*regimes, healthy(rest)))


def clean_day() -> list[Samples]:
    """Jobs train, begin, and end well; the ledger counts nothing bad."""
    nodes = ("n1", "n2", "n3", "n4")
    series = _agents(*nodes)
    for number in range(1, 5):
        places = _places(nodes[number - 1], nodes[number % 4])
        series += in_cluster("c1", training_job(healthy(END_SECONDS), places=places), f"j{number}")
    ends = [
        *training_job(healthy(60)),
        *_ended(60),
    ]
    series += in_cluster("c1", ends, "j9")
    series += counts(_TIMING, "job_success", 200, {})
    return in_cluster("clean", series)


def _ended(at_seconds: int) -> list[Samples]:
    after = END_SECONDS - at_seconds
    done = steady(4, min(after, 60), at_seconds)
    return [
        samples(training.RANKS, done, instance="n1:9400", cluster="c1", job_id="j1", node="n1",
                state="done")
    ]  # fmt: skip


def quiet_weekend() -> list[Samples]:
    """No job, and a ledger that has counted none in any window."""
    return in_cluster("weekend", [*_agents("n1"), *counts(_TIMING, "job_success", 0, {})])


def failure_storm(spec: Spec) -> list[Samples]:
    """More jobs fail than chance explains."""
    return in_cluster("storm", _firing_case(spec, "ClusterLosing", "job_success").series)


def ledger_restart() -> list[Samples]:
    """The ledger is away for twenty seconds, and counts what it counted before."""
    before = _TIMING.onset_seconds
    again = [
        Samples(each.series, steady(each.course.start, END_SECONDS, before + 20))
        for each in counts(_TIMING, "job_success", 200, {})
    ]
    first = [Samples(each.series, steady(each.course.start, before)) for each in again]
    return in_cluster("ledger", first + again)


def lost_telemetry() -> list[Samples]:
    """Of twelve agents one falls silent under a job that goes on; Kubernetes knows its node."""
    places = _places("n1", "n2")
    job = training_job(healthy(END_SECONDS), places=places)
    before = training_job(healthy(ONSET_SECONDS), places=places)
    series = [
        *(
            Samples(f'kube_node_info{{cluster="c1", node="n{number}"}}', steady(1, END_SECONDS))
            for number in range(1, 13)
        ),
        *_agents(*(f"n{number}" for number in range(3, 13)), "n1"),
        *_agents("n2", until_seconds=ONSET_SECONDS),
        *(each for each in job if 'instance="n1:9400"' in each.series),
        *(each for each in before if 'instance="n2:9400"' in each.series),
    ]
    return in_cluster("telemetry", series)


def lost_node() -> list[Samples]:
    """A node is gone with its agent and its ranks; the job stands."""
    places = _places("n1", "n2")
    before = training_job(healthy(ONSET_SECONDS), places=places)
    stuck = [
        *present(END_SECONDS, places=places),
        *moving(Stretch(ONSET_SECONDS, 1), Stretch(END_SECONDS, 0), places=places),
        *_hangs(("n1",), ONSET_SECONDS),
    ]
    gone = [each for each in before if 'instance="n2:9400"' in each.series]
    stands = [each for each in stuck if 'instance="n1:9400"' in each.series]
    silent = _agents("n2", until_seconds=ONSET_SECONDS)
    others = _agents(*(f"n{number}" for number in range(3, 14)), "n1")
    return in_cluster("gone", [*gone, *stands, *silent, *others])


def requeue_loop(spec: Spec) -> list[Samples]:
    """Attempts go back to the queue more often than chance explains."""
    return in_cluster("requeues", _firing_case(spec, "TrainSLOBurn", "requeue").series)


def every_story(spec: Spec) -> list[Samples]:
    """All of them, each in its own cluster."""
    return [
        *lost_node(),
        *stall(),
        *flapping(),
        *linked(),
        *capped(),
        *failure_storm(spec),
        *requeue_loop(spec),
        *ledger_restart(),
        *lost_telemetry(),
        *quiet_weekend(),
        *clean_day(),
    ]


def _firing_case(spec: Spec, name: str, slo: str) -> Case:
    """Of the sign of an alert that an objective is."""
    alerts = [each for each in spec.objective_alerts if each.name == name]
    [sign] = [
        sign
        for each in alerts
        if isinstance(each.condition, Signs)
        for sign in each.condition.signs
        if sign.name == slo
    ]
    return next(case for case in find_cases(sign.condition, _TIMING) if case.fires is not None)
