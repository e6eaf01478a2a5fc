"""A node under a job is gone: its agent is silent, and the ranks on the other nodes stand still."""

from dataclasses import dataclass
from typing import ClassVar

from lockstep_alerts.conditions.condition import LIVE_WINDOW, Case, Condition
from lockstep_alerts.conditions.joins import JOB_LABELS, NODE_LABELS, ON_JOB, ON_MACHINE, RUNNING
from lockstep_alerts.conditions.synthetic import (
    Samples,
    Stretch,
    Timing,
    growing,
    sample_node,
    samples,
    steady,
    steps_up,
)
from lockstep_catalogue import agent, foreign, training
from lockstep_catalogue.labels import CLUSTER, NODE, STATE
from lockstep_catalogue.promql import by, eq, one_of, select
from lockstep_catalogue.windows import ScrapeWindows

_MEMORY = "10m"
_ON_NODE = f"on ({NODE.name})"


def jobs_on_lost_nodes(windows: ScrapeWindows) -> str:
    """Nodes that are gone, each with the jobs whose ranks ran there at its last sample."""
    info = select(agent.AGENT_INFO)
    present = by("group", f"present_over_time({info}[{windows.live}])", CLUSTER, NODE)
    silent = (
        f"{by('group', f'last_over_time({info}[{_MEMORY}])', CLUSTER, NODE)}\n"
        f"unless {ON_MACHINE} {present}"
    )
    last = f"last_over_time({select(training.RANKS, one_of(STATE, *RUNNING))}[{_MEMORY}])"
    carried = by("group", f"{last} > 0", *NODE_LABELS)
    # An agent that is restarted stops no job: the ranks elsewhere go on.
    latest = by("max", select(training.LAST_PROGRESS), *JOB_LABELS)
    stands = f"(time() - {latest} > {windows.live_seconds})"
    not_ready = select(
        foreign.KUBE_NODE_CONDITION,
        eq(foreign.KUBE_CONDITION, "Ready"),
        eq(foreign.KUBE_STATUS, "true"),
    )
    return (
        f"{carried} and {ON_MACHINE} ({silent}) and {ON_JOB} {stands}\nor\n"
        f"{carried} and {_ON_NODE} ({not_ready} == 0)"
    )


class JobNodeLost(Condition):
    """No sample of the node's agent in the live window, or Kubernetes calls the node not ready."""

    DETECTED_AFTER: ClassVar[int | str] = LIVE_WINDOW

    def expression(self, windows: ScrapeWindows) -> str:
        """Nodes that are gone, each with the jobs that they carried."""
        return jobs_on_lost_nodes(windows)

    def cases(self, timing: Timing) -> list[Case]:
        """A node is silent or not ready; an agent is restarted; a job had ended before."""
        lost = {"cluster": "c1", "job_id": "j1", "node": "n2"}
        ready = {"node": "n2", "condition": "Ready", "status": "true"}
        not_ready = samples(foreign.KUBE_NODE_CONDITION, steps_up(timing, 0, 1), **ready)
        silent, moving = _Job(timing=timing, moves=False), _Job(timing=timing, moves=True)
        answering = _Job(timing=timing, moves=True, is_silent=False)
        ended = _Job(timing=timing, moves=False, state="done")
        return [
            Case("a node is silent, and the job stands", silent.series(), lost),
            Case("Kubernetes misses the node", [*answering.series(), not_ready], lost),
            Case("an agent is restarted, and the job goes on", moving.series()),
            Case("the job ended before", ended.series()),
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """A job of two nodes, of which the second falls silent at the onset."""

    timing: Timing
    moves: bool
    is_silent: bool = True
    state: str = "training"

    def series(self) -> list[Samples]:
        onset, by_deadline = self.timing.onset_seconds, self.timing.fires_by_seconds
        until = {"n1": by_deadline, "n2": onset if self.is_silent else by_deadline}
        rate = 1.0 if self.moves else 0.0
        progress = growing(Stretch(onset, 1), Stretch(self.timing.fires_within_seconds, rate))
        return [
            sample_node(training.LAST_PROGRESS, progress, job_id="j1", rank="0"),
            *(
                sample_node(metric, steady(1, until[node]), node, **labels)
                for node in until
                for metric, labels in (
                    (agent.AGENT_INFO, {"version": "1"}),
                    (training.RANKS, {"job_id": "j1", "state": self.state}),
                )
            ),
        ]
