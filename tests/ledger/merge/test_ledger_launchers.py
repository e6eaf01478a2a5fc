"""Several launchers of one job on one node: members of one attempt, as if each had a node."""

from typing import Any

import msgspec
import pytest

from lockstep_ledger.merge.record import Record

from ..model.stored import differences
from ..stories import Story
from .replay import Replay

Member = tuple[str, str | None]
ALONE, SECOND, THIRD = ("n1", None), ("n1", "2"), ("n1", "3")
TWO_PODS: tuple[Member, ...] = (ALONE, SECOND)
FOUR_PODS: tuple[Member, ...] = (ALONE, SECOND, ("n2", None), ("n2", "2"))
KILLED: dict[str, Any] = {"failure_class": "infra", "cause": "killed", "cause_ranks": [5]}
PEER: dict[str, Any] = {"failure_class": "unknown", "cause": "peer_failure"}


def started(
    story: Story, members: tuple[Member, ...], attempt: int = 0, num_nodes: int | None = None
) -> Story:
    """Launchers that begin within seconds, with four GPUs each."""
    for node, launcher in members:
        words = {"num_nodes": num_nodes or len(members), "nproc_per_node": 4}
        story.add("job_started", node, attempt, launcher, **words)
        story.add("attempt_started", node, attempt, launcher, num_gpus=4).after(1)
    return story


def ended(story: Story, member: Member, outcome: str = "succeeded", attempt: int = 0,
          **fields: Any) -> Story:  # fmt: skip
    node, launcher = member
    for kind in ("attempt_ended", "job_finished"):
        story.add(kind, node, attempt, launcher, outcome=outcome, **fields)
    return story


def agreed(replay: Replay) -> Record:
    """The job, which the model gives too."""
    assert differences(replay.engine) == []
    return replay.job


def healthy(members: tuple[Member, ...]) -> Story:
    story = started(Story(), members).after(100)
    for member in members:
        ended(story, member)
    return story


def restarted_in_place() -> Story:
    """A rank of the second pod fails; both launchers start their ranks again."""
    story = started(Story(), TWO_PODS).after(50)
    story.add("attempt_ended", "n1", 0, "2", outcome="failed", **KILLED)
    story.add("attempt_ended", "n1", 0, None, outcome="failed", **PEER).after(10)
    for node, launcher in TWO_PODS:
        story.add("attempt_started", node, 1, launcher, num_gpus=4)
    story.after(40)
    for member in TWO_PODS:
        ended(story, member, attempt=1)
    return story


def new_pods_after_lost_ends() -> Story:
    """Both pods vanish without a word; two new ones on the node take over."""
    story = started(Story(), TWO_PODS).after(50)
    started(story, TWO_PODS).after(100)
    return ended(ended(story, ALONE), SECOND)


HISTORIES = {
    "healthy": healthy(TWO_PODS),
    "four": healthy(FOUR_PODS),
    "restarted": restarted_in_place(),
    "ends lost": new_pods_after_lost_ends(),
}


def test_two_pods_on_a_node_are_two_members_of_one_attempt() -> None:
    job = agreed(Replay(healthy(TWO_PODS)))
    assert (job.status, job.outcome) == ("finished", "succeeded")
    assert (job.attempts, job.requeues, len(job.runs), job.machines) == (1, 0, 1, 2)
    # From each start to each end, 101.5 s in the mean, with 4 GPUs.
    assert job.gpu_seconds == (102 + 101) * 4


def test_a_pod_without_an_end_is_named_with_its_node() -> None:
    replay = Replay(ended(started(Story(), TWO_PODS).after(50), ALONE)).settle(1)
    job = agreed(replay)
    assert (job.outcome, job.cause, job.silent_nodes) == ("unknown", "node_silent", ["n1/2"])


def test_a_restart_of_the_ranks_of_both_is_one_more_attempt() -> None:
    job = agreed(Replay(restarted_in_place()))
    assert (job.attempts, job.requeues, job.outcome) == (2, 0, "succeeded")
    assert job.goodput["recovery"] == 10 * 8


def test_a_new_launcher_in_the_place_of_one_is_an_attempt() -> None:
    # The second pod's container starts again while the first pod's launcher goes on.
    story = started(Story(), TWO_PODS).after(50)
    before = agreed(Replay(story)).attempts
    started(story, (SECOND,), num_nodes=2).after(50)
    assert agreed(Replay(ended(ended(story, ALONE), SECOND))).attempts == before + 1


def test_an_incident_of_the_node_makes_no_member_of_it() -> None:
    story = started(Story(), (SECOND, THIRD)).after(10)
    story.add("node_event", "n1", 0, sign="xid", detail="79 GPU has fallen off the bus").after(10)
    for member in (SECOND, THIRD):
        ended(story, member, "failed", failure_class="unknown", cause="exit")
    job = agreed(Replay(story))
    assert (job.machines, job.failure_class, job.cause_node) == (2, "infra", "n1")


@pytest.mark.parametrize("name", HISTORIES)
def test_several_launchers_of_a_node_are_as_several_nodes(name: str) -> None:
    apart = Story()
    for event in HISTORIES[name].events:
        launcher = event.get("launcher")
        node = event["node"] if launcher is None else f"{event['node']}/{launcher}"
        apart.events.append({k: v for k, v in event.items() if k != "launcher"} | {"node": node})
    apart.now = HISTORIES[name].now
    of_launchers, of_nodes = Replay(HISTORIES[name]).job, Replay(apart).job
    of_nodes.cause_node = of_launchers.cause_node
    assert msgspec.to_builtins(of_launchers) == msgspec.to_builtins(of_nodes)
