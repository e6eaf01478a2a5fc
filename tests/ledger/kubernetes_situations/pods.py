"""Time, attempts and faults of pods, as controllers and scheduler of Kubernetes tell them."""

from .cluster import Cluster
from .manifests import job, pod
from .scenario import ExpectedJob, single, situation, wait_for_pod, waited

POLICY = {
    "rules": [
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": "train", "operator": "In", "values": [2]},
        }
    ]
}
SINGLE = [
    single(
        "Two pods of 4 GPUs that run 3 s and 5 s cost 32 GPU-seconds, not twice the Job's 5 s.",
        ExpectedJob("g01-two", "succeeded", attempts=1, gpu_seconds=32, num_gpus=8),
        4, pods=2, run=(3, 5),
    ),
    single(
        "Retried until the limit: all pods failed, and each is an attempt.",
        ExpectedJob("a07-limit", "failed", attempts=3, gpu_seconds=6),
        2, run=1, lab={"exit-code": 1}, backoffLimit=2, ends="Failed",
    ),
    single(
        "A back-off limit per index: one index fails twice, the other is done; one job.",
        ExpectedJob("a09-index", "failed", "unknown", "exit", attempts=2),
        1, pods=2, lab={"run-seconds": 2, "exit-code-1": 1}, backoffLimit=6,
        backoffLimitPerIndex=1, ends="Failed",
    ),
    single(
        "A job that runs until activeDeadlineSeconds was ended by its time limit.",
        ExpectedJob("f14-deadline", "time_limit", cause="time_limit"),
        2, activeDeadlineSeconds=4, ends="Failed",
    ),
    single(
        "A pod failure policy fails the Job at exit status 2: bad input, the user's.",
        ExpectedJob("f16-policy", "failed", "user", "bad_arguments", attempts=1),
        2, run=1, lab={"exit-code": 2}, backoffLimit=6, podFailurePolicy=POLICY, ends="Failed",
    ),
]  # fmt: skip


@situation(
    "A Job that waits 4 s for its node and then runs 3 s waited 4 s and costs 3 s of 2 GPUs.",
    ExpectedJob("g03-wait", "succeeded", gpu_seconds=6, queue_wait_seconds=waited("g03-wait")),
)
def time_waits_for_node(c: Cluster) -> None:
    c.apply(job("g03-wait", 2, node="g03-node", run=3))
    c.wait(4)
    c.add_node("g03-node", 2)
    c.wait_condition("Job", "g03-wait", "Complete")


@situation(
    "A Job grows from one pod to four: each pod counts from its own start.",
    ExpectedJob("g05-grow", "cancelled", gpu_seconds=lambda d: d.gpu_seconds("g05-grow")),
)
def time_grows(c: Cluster) -> None:
    c.apply(job("g05-grow", 2, pods=1, completionMode="Indexed"))
    c.wait_pods("g05-grow", 1)
    c.wait(3)
    c.patch("Job", "g05-grow", {"spec": {"parallelism": 4, "completions": 4}})
    c.wait_pods("g05-grow", 4)
    c.wait(4)
    c.delete("Job", "g05-grow")
    c.wait_gone("Job", "g05-grow")


@situation(
    "What its owner holds suspended does not wait: the wait begins when the owner resumes it.",
    ExpectedJob(
        "g07-held", "succeeded", gpu_seconds=6, queue_wait_seconds=waited("g07-held", "resumed")
    ),
)
def time_held_by_owner(c: Cluster) -> None:
    c.apply(job("g07-held", 2, run=3, suspend=True, lab={"start-seconds": 2}))
    c.wait(5)
    c.note("resumed")
    c.patch("Job", "g07-held", {"spec": {"suspend": False}})
    c.wait_condition("Job", "g07-held", "Complete")


@situation(
    "A pod of a higher class takes the node: the scheduler preempted the job.",
    ExpectedJob("f04-victim", "preempted", cause="preemption"),
    ExpectedJob("f04-urgent", is_open=True, num_gpus=4),
)
def fault_preempted_by_scheduler(c: Cluster) -> None:
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    c.apply(high | {"metadata": {"name": "f04-high"}})
    c.add_node("f04-node", 4)
    c.apply(job("f04-victim", 4, node="f04-node"))
    c.wait_pods("f04-victim", 1)
    c.wait(2)
    c.apply(pod("f04-urgent", 4, node="f04-node", priorityClassName="f04-high"))
    c.wait_pods("f04-urgent", 1)
    c.wait_condition("Job", "f04-victim", "Failed")


@situation(
    "A NoExecute taint throws the pod off its node: the taint manager's reason is a lost node.",
    ExpectedJob("f06-taint", "failed", "infra", "node_failure"),
)
def fault_taint_manager(c: Cluster) -> None:
    c.add_node("f06-node", 2)
    c.apply(job("f06-taint", 2, node="f06-node"))
    c.wait_pods("f06-taint", 1)
    c.wait(2)
    c.taint_node("f06-node", "gpu-broken")
    c.wait_condition("Job", "f06-taint", "Failed")


@situation(
    "A policy that ignores disruptions: preempted twice, then done; a success of three attempts.",
    ExpectedJob("f17-ignored", "succeeded", attempts=3),
)
def fault_policy_ignores_disruption(c: Cluster) -> None:
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
    c.apply(job("f17-ignored", 2, backoffLimit=0, podFailurePolicy={"rules": rules}))
    (pod_before,) = c.wait_pods("f17-ignored", 1)
    name = pod_before["metadata"]["name"]
    for _ in range(2):
        c.end_pod(name, 143, disruption="PreemptionByScheduler")
        name = wait_for_pod(c, "f17-ignored", name)
    c.end_pod(name)
    c.wait_condition("Job", "f17-ignored", "Complete")
