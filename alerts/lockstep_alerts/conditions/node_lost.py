"""A node under a job is gone: its agent is silent, and the ranks on the other nodes stand still."""

from dataclasses import dataclass

from lockstep_alerts.conditions.condition import Timing
from lockstep_alerts.conditions.immediate import (
    OF_JOB_NODE,
    ON_MACHINE,
    Immediate,
    Outline,
    of_node,
    steps_up,
)
from lockstep_alerts.conditions.joins import JOB_LABELS, ON_JOB
from lockstep_alerts.conditions.placed import RUNNING
from lockstep_alerts.synthetic import Samples, Stretch, growing, samples, steady
from lockstep_catalogue import foreign, health, training
from lockstep_catalogue.labels import CLUSTER, NODE, STATE
from lockstep_catalogue.promql import by, eq, one_of, select
from lockstep_catalogue.windows import ScrapeWindows

_MEMORY = "10m"
_ON_NODE = f"on ({NODE.name})"


def jobs_on_lost_nodes(windows: ScrapeWindows) -> str:
    """Nodes that are gone, each with the jobs whose ranks ran there at its last sample."""
    info = select(health.AGENT_INFO)
    present = by("group", f"present_over_time({info}[{windows.live}])", CLUSTER, NODE)
    silent = (
        f"{by('group', f'last_over_time({info}[{_MEMORY}])', CLUSTER, NODE)}\n"
        f"unless {ON_MACHINE} {present}"
    )
    last = f"last_over_time({select(training.RANKS, one_of(STATE, *RUNNING))}[{_MEMORY}])"
    carried = by("group", f"{last} > 0", *OF_JOB_NODE)
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


class JobNodeLost(Immediate):
    """No sample of the node's agent in the live window, or Kubernetes calls the node not ready."""

    __slots__ = ()

    def expression(self, windows: ScrapeWindows) -> str:
        """Nodes that are gone, each with the jobs that they carried."""
        return jobs_on_lost_nodes(windows)

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """A live window without a sample."""
        return windows.live_seconds

    def outlines(self, timing: Timing) -> list[Outline]:
        """A node is silent or not ready; an agent is restarted; a job had ended before."""
        lost = {"cluster": "c1", "job_id": "j1", "node": "n2"}
        ready = {"node": "n2", "condition": "Ready", "status": "true"}
        not_ready = samples(foreign.KUBE_NODE_CONDITION, steps_up(timing, 0, 1), **ready)
        silent, moving = _Job(timing=timing, moves=False), _Job(timing=timing, moves=True)
        answering = _Job(timing=timing, moves=True, is_silent=False)
        ended = _Job(timing=timing, moves=False, state="done")
        return [
            Outline("a node is silent, and the job stands", silent.series(), lost),
            Outline("Kubernetes misses the node", [*answering.series(), not_ready], lost),
            Outline("an agent is restarted, and the job goes on", moving.series()),
            Outline("the job ended before", ended.series()),
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
            of_node(training.LAST_PROGRESS, progress, job_id="j1", rank="0"),
            *(
                of_node(metric, steady(1, until[node]), node, **labels)
                for node in until
                for metric, labels in (
                    (health.AGENT_INFO, {"version": "1"}),
                    (training.RANKS, {"job_id": "j1", "state": self.state}),
                )
            ),
        ]
