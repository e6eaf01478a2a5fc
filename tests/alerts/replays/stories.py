"""Scripts of whole incidents, each in a cluster of its own: what agents and ledger serve."""

from collections.abc import Iterable

from lockstep_catalogue import agent, incidents, training
from lockstep_catalogue.metric import Metric

from ..cases.synthetic import (
    Course,
    Placement,
    Samples,
    Stretch,
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


def _stalled() -> list[Samples]:
    places = _places("n1", "n2")
    return [
        *_agents("n1", "n2"),
        *present(END_SECONDS, places=places),
        *moving(Stretch(ONSET_SECONDS, 1), Stretch(END_SECONDS, 0), places=places),
        *stepping(healthy(ONSET_SECONDS), places=places),
        *_hangs(("n1", "n2"), ONSET_SECONDS),
    ]


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


def every_story() -> list[Samples]:
    """All of them, each in its own cluster."""
    return [*lost_node(), *linked(), *capped()]
