"""A node under a job is gone: its agent is silent, and the ranks on the other nodes stand still."""

from lockstep_alerts.conditions import joins
from lockstep_alerts.conditions.condition import LIVE_WINDOW, Condition
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
        f"unless {joins.MACHINE_JOIN} {present}"
    )
    # What ran there when the agent was last seen: a job that had left before is not hit.
    past = f"[{_MEMORY}:{spelled(windows.scrape_seconds)}]"
    ranks = select(training.RANKS, one_of(STATE, *joins.RUNNING))
    ran_at = by("max", f"max_over_time(timestamp({ranks} > 0){past})", *joins.NODE_LABELS)
    seen_at = by("max", f"max_over_time(timestamp({info}){past})", CLUSTER, NODE)
    carried = f"({ran_at} >= {joins.MACHINE_JOIN} group_left () {seen_at})"
    # An agent that is restarted stops no job: the ranks elsewhere go on, or pause by plan.
    stands = f"{joins.recent(recorded.STANDING, windows)} unless {joins.has_paused(windows)}"

    def not_ready(*matchers: Matcher) -> str:
        ready = (eq(foreign.KUBE_CONDITION, "Ready"), eq(foreign.KUBE_STATUS, "true"))
        condition = select(foreign.KUBE_NODE_CONDITION, *ready, *matchers)
        return f"({by('max', condition, CLUSTER, NODE)} == 0)"

    return (
        f"{carried} and {joins.MACHINE_JOIN} ({silent}) and {joins.JOB_JOIN} ({stands})\nor\n"
        f"{joins.kube_says(f'({carried})', not_ready)}"
    )


class JobNodeLost(Condition):
    """No sample of the node's agent in the live window, or Kubernetes calls the node not ready."""

    DETECTED_AFTER = LIVE_WINDOW

    def expression(self, windows: ScrapeWindows) -> str:
        """Nodes that are gone, each with the jobs that they carried."""
        return jobs_on_lost_nodes(windows)
