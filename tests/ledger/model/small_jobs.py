"""Jobs of up to seven events, of which every order is tried."""

from collections.abc import Mapping
from typing import Any

from .histories import BASE_SECONDS, CLUSTER
from .truth import Message


def word(
    number: int, node: str, seconds: float, kind: str, attempt: int = 0, **fields: Any
) -> Message:
    """An event some seconds after BASE_SECONDS, of ``small`` or of the ``job_id`` among fields.

    A node may be ``NODE/LAUNCHER``.
    """
    time = BASE_SECONDS + seconds
    job_id = fields.pop("job_id", "small")
    node, _, launcher = node.partition("/")
    event: Mapping[str, Any] = {
        "version": 1,
        "id": f"small-{number}",
        "kind": kind,
        "job_id": job_id,
        "attempt": attempt,
        "time": time,
        "node": node,
        "cluster": CLUSTER,
        "fields": fields,
    }
    if launcher:
        event = {**event, "launcher": launcher}
    if "owner" in fields:
        event = {**event, "owner": fields["owner"]}
    return Message(sender=node or "scheduler", clock_offset=0.0, true_time=time, event=event)


_FAILED: dict[str, Any] = {"outcome": "failed", "failure_class": "infra", "cause": "xid"}

SMALL_JOBS: dict[str, tuple[Message, ...]] = {
    # Slurm's late word on run 1 must not end run 2.
    "late word on the first run": (
        word(0, "", 0, "job_submitted", num_nodes=1, num_gpus=8),
        word(1, "", 10, "job_started", 0, num_gpus=8),
        word(2, "", 500, "job_finished", 0, outcome="preempted"),
        word(3, "", 510, "job_requeued", 0),
        word(4, "", 600, "job_started", 1, num_gpus=8),
        word(5, "", 900, "job_finished", 1, outcome="succeeded"),
    ),
    "two nodes, one silent": (
        word(0, "a", 10, "job_started", num_nodes=2, num_gpus=8),
        word(1, "b", 11, "job_started", num_nodes=2, num_gpus=8),
        word(2, "b", 400, "goodput", rank_seconds={"productive": 1200.0}, num_ranks=4, num_gpus=4),
        word(3, "a", 500, "job_finished", **_FAILED),
    ),
    "two launchers of a node": (
        word(0, "a", 10, "job_started", num_nodes=2, num_gpus=8),
        word(1, "a/2", 11, "job_started", num_nodes=2, num_gpus=8),
        word(2, "a", 400, "goodput", rank_seconds={"productive": 1200.0}, num_ranks=4, num_gpus=4),
        word(3, "a/2", 500, "job_finished", **_FAILED),
        word(4, "a", 501, "job_finished", outcome="succeeded"),
    ),
    "requeue on another node": (
        word(0, "a", 10, "job_started", 0, nproc_per_node=8),
        word(1, "a", 100, "checkpoint_durable", 0, step=5),
        word(2, "a", 200, "job_finished", 0, outcome="preempted"),
        word(3, "b", 300, "job_started", 1, nproc_per_node=8),
        word(4, "b", 310, "job_resumed", 1, step=5),
        word(5, "b", 400, "job_finished", 1, outcome="succeeded"),
    ),
    "an alias joins": (
        word(0, "", 0, "job_submitted", aliases=["slurm:alpha:small"], queue="long"),
        word(1, "", 10, "job_started", aliases=["slurm:alpha:small"], num_gpus=4),
        word(2, "a", 12, "job_started", job_id="run", aliases=["slurm:alpha:small"], queue="short"),
        word(3, "a", 300, "job_finished", job_id="run", outcome="succeeded"),
        word(4, "", 302, "job_finished", outcome="succeeded"),
    ),
    "cancelled in the queue": (
        word(0, "", 0, "job_submitted", num_gpus=4),
        word(1, "", 10, "job_started", num_gpus=4),
        word(2, "", 100, "job_requeued"),
        word(3, "", 300, "job_finished", outcome="cancelled"),
    ),
    "parts of a pod that goes early": (
        word(0, "", 0, "job_started", num_gpus=8),
        word(1, "", 5, "resources_allocated", part="p1", num_gpus=4),
        word(2, "", 6, "resources_allocated", part="p2", num_gpus=4),
        word(3, "", 100, "resources_released", part="p1"),
        word(4, "", 400, "job_finished", outcome="succeeded"),
    ),
    "an incident behind a time-out": (
        word(0, "a", 0, "job_started", num_nodes=2, nproc_per_node=8),
        word(1, "b", 1, "job_started", num_nodes=2, nproc_per_node=8),
        word(2, "b", 700, "node_event", sign="xid", detail="79 GPU has fallen off the bus"),
        word(
            3,
            "a",
            1300,
            "job_finished",
            **{**_FAILED, "cause": "collective_timeout", "failure_class": "unknown"},
        ),
        word(
            4,
            "b",
            1302,
            "job_finished",
            **{**_FAILED, "cause": "peer_failure", "failure_class": "unknown"},
        ),
    ),
    "a scheduler whose start is not heard": (
        word(0, "a", 0, "job_started", 0, nproc_per_node=8),
        word(1, "a", 100, "job_finished", 0, outcome="preempted"),
        word(2, "a", 300, "job_started", 1, nproc_per_node=8),
        word(3, "a", 500, "goodput", 1, rank_seconds={"productive": 900.0}, num_ranks=8),
        word(4, "", 900, "job_finished", 1, outcome="time_limit", failure_class="user"),
    ),
    "a restart in place with a gap": (
        word(0, "", 0, "job_started", num_gpus=8, queue="long"),
        word(1, "a", 1, "attempt_started", 0, num_gpus=8),
        word(2, "a", 100, "attempt_ended", 0, outcome="failed"),
        word(3, "a", 130, "attempt_started", 1, num_gpus=8),
        word(4, "a", 200, "job_finished", 1, outcome="succeeded"),
        word(5, "", 205, "job_finished", outcome="succeeded"),
    ),
    "launchers that one run id joins": (
        word(0, "a", 0, "job_started", job_id="l1", aliases=["torchrun:x"], num_nodes=2),
        word(1, "b", 1, "job_started", job_id="l2", aliases=["torchrun:x"], num_nodes=2),
        word(2, "a", 100, "job_finished", job_id="l1", outcome="succeeded"),
        word(3, "b", 101, "job_finished", job_id="l2", outcome="succeeded"),
    ),
    "a success that pages imply": (
        word(0, "", 0, "job_started", num_gpus=8, num_nodes=2),
        word(1, "a", 2, "job_started", nproc_per_node=4),
        word(2, "b", 3, "job_started", nproc_per_node=4),
        word(3, "a", 300, "job_finished", outcome="succeeded", source="pages"),
        word(4, "b", 301, "job_finished", outcome="succeeded"),
        word(5, "", 305, "job_finished", outcome="failed", failure_class="unknown", cause="exit"),
    ),
    "preempted, lost work, and back": (
        word(0, "", 0, "job_started", 0, num_gpus=8),
        word(1, "a", 2, "job_started", 0, nproc_per_node=8),
        word(2, "a", 100, "checkpoint_durable", 0, step=1),
        word(3, "a", 200, "checkpoint_durable", 0, step=2),
        word(4, "", 250, "job_preempted", 0),
        word(5, "", 300, "job_requeued", 0),
    ),
}

LARGER_JOBS: dict[str, tuple[Message, ...]] = {
    "Slurm's word, two nodes, a requeue": (
        word(0, "", 0, "job_started", 0, num_nodes=2, num_gpus=16),
        word(1, "a", 2, "job_started", 0, nproc_per_node=8),
        word(2, "b", 3, "job_started", 0, nproc_per_node=8),
        word(3, "", 300, "job_finished", 0, **{**_FAILED, "cause": "node_failure"}),
        word(4, "", 400, "job_started", 1, num_nodes=1, num_gpus=8),
        word(5, "a", 402, "job_started", 1, nproc_per_node=8),
        word(6, "a", 700, "job_finished", 1, outcome="succeeded"),
    ),
    "two nodes, two runs, no scheduler": (
        word(0, "a", 0, "job_started", 0, num_nodes=2, num_gpus=16),
        word(1, "b", 1, "job_started", 0, num_nodes=2, num_gpus=16),
        word(2, "a", 200, "job_finished", 0, outcome="preempted"),
        word(3, "b", 201, "job_finished", 0, outcome="preempted"),
        word(4, "a", 300, "job_started", 1, num_nodes=2, num_gpus=16),
        word(5, "b", 301, "job_started", 1, num_nodes=2, num_gpus=16),
        word(6, "a", 500, "job_finished", 1, **_FAILED),
    ),
}
