"""Part 2: pods' status and conditions decide whose fault an end was."""

from typing import Any

from .attempts import wait_for_pod
from .manifests import condition, custom, job, pod
from .scenario import Cluster, ExpectedJob, situation


@situation(
    "A container over its memory limit is OOMKilled: the user's, by the host's memory.",
    ExpectedJob("f01-oom", "failed", "user", "host_oom", attempts=1),
)
def fault_oom_killed(c: Cluster) -> None:
    lab = {"container-reason": "OOMKilled", "exit-code": 137}
    c.apply(job("f01-oom", 2, run=2, lab=lab))
    c.wait_condition("Job", "f01-oom", "Failed")


@situation(
    "The kubelet evicts a pod to keep its node alive: the outcome table calls that preempted.",
    ExpectedJob("f02-evicted", "preempted", cause="eviction"),
)
def fault_evicted_by_kubelet(c: Cluster) -> None:
    lab = {"pod-reason": "Evicted", "exit-code": 137}
    c.apply(job("f02-evicted", 2, run=2, lab=lab))
    c.wait_condition("Job", "f02-evicted", "Failed")


@situation(
    "A drain evicts the only pod of a single-pod job by the API: nobody's fault.",
    ExpectedJob("f03-drain", "preempted", cause="preemption"),
)
def fault_evicted_by_api(c: Cluster) -> None:
    c.apply(job("f03-drain", 2))
    (only,) = c.wait_pods("f03-drain", 1)
    c.wait(2)
    c.evict(only["metadata"]["name"])
    c.wait_condition("Job", "f03-drain", "Failed")


@situation(
    "A pod of a higher class takes the node: the scheduler preempted the job.",
    ExpectedJob("f04-victim", "preempted", cause="preemption"),
    ExpectedJob("f04-urgent", is_open=True, num_gpus=4),
)
def fault_preempted_by_scheduler(c: Cluster) -> None:
    c.apply(_priority("f04-high"))
    c.add_node("f04-node", 4)
    c.apply(job("f04-victim", 4, node="f04-node"))
    c.wait_pods("f04-victim", 1)
    c.wait(2)
    c.apply(pod("f04-urgent", 4, node="f04-node", priorityClassName="f04-high"))
    c.wait_pods("f04-urgent", 1)
    c.wait_condition("Job", "f04-victim", "Failed")


def _priority(name: str) -> dict[str, object]:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": 1000,
    }


@situation(
    "A preempted pod is replaced and the job succeeds: two attempts, and a success.",
    ExpectedJob("f05-comes-back", "succeeded", attempts=2),
)
def fault_preempted_and_back(c: Cluster) -> None:
    c.apply(job("f05-comes-back", 4, backoffLimit=3))
    (first,) = c.wait_pods("f05-comes-back", 1)
    c.wait(2)
    name = first["metadata"]["name"]
    c.end_pod(name, 143, disruption="PreemptionByScheduler")
    second = wait_for_pod(c, "f05-comes-back", name)
    c.wait(2)
    c.end_pod(second)
    c.wait_condition("Job", "f05-comes-back", "Complete")


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
    "A node shuts down and its kubelet ends the pod: the infrastructure's.",
    ExpectedJob("f07-shutdown", "failed", "infra", "node_failure"),
)
def fault_terminated_by_kubelet(c: Cluster) -> None:
    lab = {"pod-reason": "Terminated", "disruption": "TerminationByKubelet", "exit-code": 143}
    c.apply(job("f07-shutdown", 2, run=2, lab=lab))
    c.wait_condition("Job", "f07-shutdown", "Failed")


@situation(
    "A node that falls silent is not ready, its pod is deleted: the infrastructure's, never user.",
    ExpectedJob("f08-silent", "failed", "infra", "node_failure"),
    notes="The pod is never confirmed dead; its time ends when the server took it from the job.",
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
    "A node is deleted under its pod: the pod's garbage collector says so, and it is infra.",
    ExpectedJob("f09-gone", "failed", "infra", "node_failure"),
)
def fault_node_deleted(c: Cluster) -> None:
    lab = {"disruption": "DeletionByPodGC", "exit-code": 143}
    c.apply(job("f09-gone", 2, run=2, lab=lab))
    c.wait_condition("Job", "f09-gone", "Failed")


@situation(
    "An image that cannot be pulled until the deadline: the user's launch failure, nothing billed.",
    ExpectedJob("f10-image", "failed", "user", "launch_failure", gpu_seconds=0),
)
def fault_image(c: Cluster) -> None:
    lab = {"never-starts": "ImagePullBackOff"}
    c.apply(job("f10-image", 8, lab=lab, activeDeadlineSeconds=4))
    c.wait_condition("Job", "f10-image", "Failed")


@situation(
    "An image name that is none ends as one that cannot be pulled.",
    ExpectedJob("f11-name", "failed", "user", "launch_failure", gpu_seconds=0),
)
def fault_image_name(c: Cluster) -> None:
    lab = {"never-starts": "InvalidImageName"}
    c.apply(job("f11-name", 8, lab=lab, activeDeadlineSeconds=4))
    c.wait_condition("Job", "f11-name", "Failed")


@situation(
    "Unschedulable until somebody deletes it: cancelled, never failed, and free of charge.",
    ExpectedJob("f12-nowhere", "cancelled", gpu_seconds=0),
)
def fault_unschedulable_deleted(c: Cluster) -> None:
    c.apply(job("f12-nowhere", 64))
    c.wait_pods("f12-nowhere", 1, "Pending")
    c.wait(3)
    c.delete("Job", "f12-nowhere")
    c.wait_gone("Job", "f12-nowhere")


@situation(
    "Unschedulable until its deadline: it never ran, so the time limit is not the user's code.",
    ExpectedJob("f13-late", gpu_seconds=0, refused=("succeeded", "cancelled")),
)
def fault_unschedulable_deadline(c: Cluster) -> None:
    c.apply(job("f13-late", 64, activeDeadlineSeconds=4))
    c.wait_condition("Job", "f13-late", "Failed")


@situation(
    "A job that runs until activeDeadlineSeconds was ended by its time limit.",
    ExpectedJob("f14-deadline", "time_limit", cause="time_limit"),
)
def fault_deadline(c: Cluster) -> None:
    c.apply(job("f14-deadline", 2, activeDeadlineSeconds=4))
    c.wait_condition("Job", "f14-deadline", "Failed")


@situation(
    "The back-off limit is no cause: the exit status of the pods is (segmentation fault).",
    ExpectedJob("f15-limit", "failed", "unknown", "segfault", attempts=2),
)
def fault_back_off_limit(c: Cluster) -> None:
    c.apply(job("f15-limit", 2, run=1, lab={"exit-code": 139}, backoffLimit=1))
    c.wait_condition("Job", "f15-limit", "Failed")


@situation(
    "A pod failure policy fails the Job at exit status 2: bad input, the user's.",
    ExpectedJob("f16-policy", "failed", "user", "bad_arguments", attempts=1),
)
def fault_pod_failure_policy(c: Cluster) -> None:
    on_exit = {"containerName": "train", "operator": "In", "values": [2]}
    rules = [{"action": "FailJob", "onExitCodes": on_exit}]
    lab = {"exit-code": 2}
    policy = {"rules": rules}
    c.apply(job("f16-policy", 2, run=1, lab=lab, backoffLimit=6, podFailurePolicy=policy))
    c.wait_condition("Job", "f16-policy", "Failed")


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
    lab = {"container-reason": "OOMKilled", "exit-code": 137}
    c.apply(job("f18-set-workers-0", 2, run=2, lab=lab), owner=owner)
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


@situation(
    "The container could not be configured (a secret that is not there): a launch failure.",
    ExpectedJob("f21-config", "failed", "user", "launch_failure", gpu_seconds=0),
)
def fault_container_config(c: Cluster) -> None:
    lab = {"never-starts": "CreateContainerConfigError"}
    c.apply(job("f21-config", 8, lab=lab, activeDeadlineSeconds=4))
    c.wait_condition("Job", "f21-config", "Failed")


@situation(
    "A single pod that fails is judged as a Job's pod is.",
    ExpectedJob("f22-single", "failed", "unknown", "segfault"),
)
def fault_single_pod(c: Cluster) -> None:
    c.apply(pod("f22-single", 1, lab={"run-seconds": 2, "exit-code": 139}))
    c.wait_pods("f22-single", 1, "Failed")


@situation(
    "A PyTorchJob that its operator calls failed, whose pod was evicted by taint: infra.",
    ExpectedJob("f23-operator", "failed", "infra", "node_failure"),
)
def fault_of_an_operator_kind(c: Cluster) -> None:
    owner = c.apply(custom("PyTorchJob", "f23-operator"))
    lab = {"run-seconds": 2, "exit-code": 143, "disruption": "DeletionByTaintManager"}
    c.apply(pod("f23-operator-master-0", 2, lab=lab), owner=owner)
    c.wait_pods("f23-operator", 1, "Failed")
    failed = condition("Failed", reason="PyTorchJobFailed", message="a replica failed")
    c.patch("PyTorchJob", "f23-operator", {"status": {"conditions": [failed]}}, status=True)


@situation(
    "A Job that reaches its back-off limit by an index: maxFailedIndexes fails it.",
    ExpectedJob("f24-index", "failed", "user", "host_oom"),
)
def fault_of_an_index(c: Cluster) -> None:
    lab = {"run-seconds": 2, "exit-code-0": 76, "exit-code": 0}
    more: dict[str, Any] = {"backoffLimit": 6, "backoffLimitPerIndex": 0, "maxFailedIndexes": 0}
    c.apply(job("f24-index", 1, pods=2, lab=lab, **more))
    c.wait_condition("Job", "f24-index", "Failed")
