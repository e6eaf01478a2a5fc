"""Exit status, reason and conditions of pods decide whose fault an end was."""

from .cluster import Cluster
from .manifests import condition, custom, job, pod
from .scenario import ExpectedJob, single, situation, wait_for_pod

OUT_OF_MEMORY = {"container-reason": "OOMKilled", "exit-code": 137}
# Judged as the launcher judges it (docs/outcomes.md).
STATUSES: dict[int, tuple[str, str | None, str | None]] = {
    0: ("succeeded", None, None),
    1: ("failed", "unknown", "exit"),
    2: ("failed", "user", "bad_arguments"),
    75: ("preempted", None, "preemption"),
    76: ("failed", "user", "host_oom"),
    124: ("time_limit", None, "time_limit"),
    126: ("failed", "user", "launch_failure"),
    127: ("failed", "user", "launch_failure"),
    134: ("failed", "unknown", "aborted"),
    135: ("failed", "unknown", "bus_error"),
    137: ("failed", "unknown", "killed"),  # without OOMKilled nothing tells by whom
    139: ("failed", "unknown", "segfault"),
}
BY_STATUS = [
    single(
        f"Exit status {status} is {outcome}.",
        ExpectedJob(f"x{status:03d}-status", *STATUSES[status], attempts=1, gpu_seconds=4),
        2, run=2, lab={"exit-code": status}, ends="Failed" if status else "Complete",
    )
    for status, (outcome, _, _) in STATUSES.items()
]  # fmt: skip
LAUNCH_FAILURE = ("failed", "user", "launch_failure")
NEVER_STARTS = [
    single(
        f"{reason} until the deadline: the user's launch failure, nothing billed.",
        ExpectedJob(name, *LAUNCH_FAILURE, gpu_seconds=0),
        8, lab={"never-starts": reason}, activeDeadlineSeconds=4, ends="Failed",
    )
    for name, reason in (
        ("f10-image", "ImagePullBackOff"),
        ("f11-name", "InvalidImageName"),
        ("f21-config", "CreateContainerConfigError"),
    )
]  # fmt: skip
BY_POD = [
    single(why, expected, 2, run=2, lab=lab, ends="Failed")
    for why, expected, lab in (
        ("A container over its memory limit is OOMKilled: the user's, by the host's memory.",
         ExpectedJob("f01-oom", "failed", "user", "host_oom", attempts=1), OUT_OF_MEMORY),
        ("The kubelet evicts a pod to keep its node alive: preempted.",
         ExpectedJob("f02-evicted", "preempted", cause="eviction"),
         {"pod-reason": "Evicted", "exit-code": 137}),
        ("A node shuts down and its kubelet ends the pod: the infrastructure's.",
         ExpectedJob("f07-shutdown", "failed", "infra", "node_failure"),
         {"pod-reason": "Terminated", "disruption": "TerminationByKubelet", "exit-code": 143}),
        ("A node is deleted under its pod: the pod's garbage collector says so.",
         ExpectedJob("f09-gone", "failed", "infra", "node_failure"),
         {"disruption": "DeletionByPodGC", "exit-code": 143}),
    )
]  # fmt: skip
POLICY = {
    "rules": [
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": "train", "operator": "In", "values": [2]},
        }
    ]
}
BY_JOB = [
    single(
        "Unschedulable until its deadline: it never ran and is neither done nor cancelled.",
        ExpectedJob("f13-late", gpu_seconds=0, refused=("succeeded", "cancelled")),
        64, activeDeadlineSeconds=4, ends="Failed",
    ),
    single(
        "A job that runs until activeDeadlineSeconds was ended by its time limit.",
        ExpectedJob("f14-deadline", "time_limit", cause="time_limit"),
        2, activeDeadlineSeconds=4, ends="Failed",
    ),
    single(
        "The back-off limit is no cause: the exit status of the pods is.",
        ExpectedJob("f15-limit", "failed", "unknown", "segfault", attempts=2),
        2, run=1, lab={"exit-code": 139}, backoffLimit=1, ends="Failed",
    ),
    single(
        "A pod failure policy fails the Job at exit status 2: bad input, the user's.",
        ExpectedJob("f16-policy", "failed", "user", "bad_arguments", attempts=1),
        2, run=1, lab={"exit-code": 2}, backoffLimit=6, podFailurePolicy=POLICY, ends="Failed",
    ),
    single(
        "One index of two fails the Job by maxFailedIndexes.",
        ExpectedJob("f24-index", "failed", "user", "host_oom"),
        1, pods=2, lab={"run-seconds": 2, "exit-code-0": 76, "exit-code": 0}, backoffLimit=6,
        backoffLimitPerIndex=0, maxFailedIndexes=0, ends="Failed",
    ),
]  # fmt: skip


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
    "A node that falls silent is not ready, its pod is deleted: the infrastructure's, never user.",
    ExpectedJob("f08-silent", "failed", "infra", "node_failure"),
)
def fault_node_not_ready(c: Cluster) -> None:
    c.add_node("f08-node", 2)
    c.apply(job("f08-silent", 2, node="f08-node"))
    (only,) = c.wait_pods("f08-silent", 1)
    c.wait(2)
    c.silence_node("f08-node")
    name = only["metadata"]["name"]
    c.wait_condition("Pod", name, "DisruptionTarget")
    c.delete("Pod", name, by_force=True)
    c.wait_condition("Job", "f08-silent", "Failed")


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


@situation(
    "JobSet's failure policy ends the set at its first failed Job: the pod's status still tells.",
    ExpectedJob("f18-set", "failed", "user", "host_oom"),
)
def fault_jobset_policy(c: Cluster) -> None:
    spec = {"failurePolicy": {"maxRestarts": 0}}
    owner = c.apply(custom("JobSet", "f18-set", spec))
    c.apply(job("f18-set-workers-0", 2, run=2, lab=OUT_OF_MEMORY), owner=owner)
    c.wait_condition("Job", "f18-set-workers-0", "Failed")
    failed = condition("Failed", reason="FailedJobs", message="jobset failed due to a job failure")
    c.patch("JobSet", "f18-set", {"status": {"conditions": [failed]}}, status=True)


@situation(
    "One of four pods runs out of memory, the others are ended for it: the first failure decides.",
    ExpectedJob("f19-first", "failed", "user", "host_oom"),
)
def fault_first_pod_decides(c: Cluster) -> None:
    c.apply(job("f19-first", 1, pods=4))
    pods = [each["metadata"]["name"] for each in c.wait_pods("f19-first", 4)]
    c.wait(2)
    c.end_pod(pods[2], 137, "OOMKilled")
    c.wait_condition("Job", "f19-first", "Failed")


@situation(
    "Deleted by hand while it ran: cancelled, and nobody failed.",
    ExpectedJob("f20-deleted", "cancelled"),
)
def fault_deleted(c: Cluster) -> None:
    c.apply(job("f20-deleted", 2))
    c.wait_pods("f20-deleted", 1)
    c.wait(2)
    c.delete("Job", "f20-deleted")
    c.wait_gone("Job", "f20-deleted")
