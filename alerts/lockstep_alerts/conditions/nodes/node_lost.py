"""A node under a job is gone: its agent is silent, and the ranks on the other nodes stand still."""

from dataclasses import dataclass

from lockstep_alerts.conditions.condition import LIVE_WINDOW, Case, Condition
from lockstep_alerts.conditions.joins import (
    NODE_LABELS,
    ON_JOB,
    ON_MACHINE,
    RUNNING,
    has_paused,
    kube_says,
    recent,
)
from lockstep_alerts.conditions.synthetic import Samples, Timing, sample_node, samples, steady
from lockstep_catalogue import agent, foreign, recorded, training
from lockstep_catalogue.labels import CLUSTER, NODE, STATE
from lockstep_catalogue.promql import Matcher, by, eq, one_of, select
from lockstep_catalogue.windows import ScrapeWindows, spelled

_MEMORY = "10m"


def jobs_on_lost_nodes(windows: ScrapeWindows) -> str:
    """Nodes that are gone, each with the jobs whose ranks ran there at its last sample."""
    info = select(agent.AGENT_INFO)
    present = by("group", f"present_over_time({info}[{windows.live}])", CLUSTER, NODE)
    silent = (
        f"{by('group', f'last_over_time({info}[{_MEMORY}])', CLUSTER, NODE)}\n"
        f"unless {ON_MACHINE} {present}"
    )
    # What ran there when the agent was last seen: a job that had left before is not hit.
    past = f"[{_MEMORY}:{spelled(windows.scrape_seconds)}]"
    ranks = select(training.RANKS, one_of(STATE, *RUNNING))
    ran_at = by("max", f"max_over_time(timestamp({ranks} > 0){past})", *NODE_LABELS)
    seen_at = by("max", f"max_over_time(timestamp({info}){past})", CLUSTER, NODE)
    carried = f"({ran_at} >= {ON_MACHINE} group_left () {seen_at})"
    # An agent that is restarted stops no job: the ranks elsewhere go on, or pause by plan.
    stands = f"{recent(recorded.STANDING, windows)} unless {has_paused(windows)}"

    def not_ready(*matchers: Matcher) -> str:
        ready = (eq(foreign.KUBE_CONDITION, "Ready"), eq(foreign.KUBE_STATUS, "true"))
        condition = select(foreign.KUBE_NODE_CONDITION, *ready, *matchers)
        return f"({by('max', condition, CLUSTER, NODE)} == 0)"

    return (
        f"{carried} and {ON_MACHINE} ({silent}) and {ON_JOB} ({stands})\nor\n"
        f"{kube_says(f'({carried})', not_ready)}"
    )


class JobNodeLost(Condition):
    """No sample of the node's agent in the live window, or Kubernetes calls the node not ready."""

    DETECTED_AFTER = LIVE_WINDOW

    def expression(self, windows: ScrapeWindows) -> str:
        """Nodes that are gone, each with the jobs that they carried."""
        return jobs_on_lost_nodes(windows)

    def cases(self, timing: Timing) -> list[Case]:
        lost = {"cluster": "c1", "job_id": "j1", "node": "n2"}
        ready = {"node": "n2", "condition": "Ready", "status": "true"}
        not_ready = samples(foreign.KUBE_NODE_CONDITION, timing.steps_up(0, 1), **ready)
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
        stands = steady(60, by_deadline, by_deadline if self.moves else onset)
        return [
            samples(recorded.STANDING, stands, cluster="c1", job_id="j1"),
            *(
                sample_node(metric, steady(1, until[node]), node, **labels)
                for node in until
                for metric, labels in (
                    (agent.AGENT_INFO, {"version": "1"}),
                    (training.RANKS, {"job_id": "j1", "state": self.state}),
                )
            ),
        ]
