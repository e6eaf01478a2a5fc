from lockstep_alerts.conditions.nodes.node_lost import JobNodeLost
from lockstep_catalogue import agent, foreign, recorded, training

from ..case import Case, proves
from ..synthetic import (
    JOB,
    Course,
    Samples,
    Timing,
    sample_node,
    samples,
    steady,
)


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
