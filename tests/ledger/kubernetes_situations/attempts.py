"""Part 1: attempts follow from failed pods, restarted containers and operators' counts."""

from typing import Any

from .manifests import condition, custom, job, pod
from .scenario import Between, Cluster, ExpectedJob, situation


@situation(
    "Two pods fail, the third succeeds: one job of three attempts.",
    ExpectedJob("a01-thrice", "succeeded", attempts=3),
)
def attempts_by_failed_pods(c: Cluster) -> None:
    c.apply(job("a01-thrice", 1, backoffLimit=4))
    before = ""
    for exit_code in (1, 1, 0):
        name = wait_for_pod(c, "a01-thrice", before)
        c.wait(1)
        c.end_pod(name, exit_code)
        before = name
    c.wait_condition("Job", "a01-thrice", "Complete")


def wait_for_pod(c: Cluster, prefix: str, before: str) -> str:
    """Wait for a running pod other than the one before; return its name."""
    for _ in range(600):
        for found in c.list_pods(prefix):
            name = str(found["metadata"]["name"])
            if found["status"].get("phase") == "Running" and name != before:
                return name
        c.wait(0.2)
    raise AssertionError(f"no pod {prefix}* other than {before!r} runs")


@situation(
    "A container that was restarted twice in its pod: three attempts, one pod.",
    ExpectedJob("a02-container", "succeeded", attempts=3),
)
def attempts_by_container_restarts(c: Cluster) -> None:
    c.apply(job("a02-container", 1, backoffLimit=6, template_spec={"restart": "OnFailure"}))
    (only,) = c.wait_pods("a02-container", 1)
    name = only["metadata"]["name"]
    for _ in range(2):
        c.wait(2)
        c.restart_container(name, exit_code=1, pause=1)
    c.wait(2)
    c.end_pod(name)
    c.wait_condition("Job", "a02-container", "Complete")


@situation(
    "Four pods of one attempt that all succeed are one attempt, not four.",
    ExpectedJob("a03-ranks", "succeeded", attempts=1, gpu_seconds=12),
)
def attempts_of_many_pods(c: Cluster) -> None:
    c.apply(job("a03-ranks", 1, pods=4, run=3))
    c.wait_condition("Job", "a03-ranks", "Complete")


@situation(
    "JobSet restarted all its Jobs once: two attempts of one job.",
    ExpectedJob("a04-set", "succeeded", attempts=2),
)
def attempts_of_jobset(c: Cluster) -> None:
    owner = c.apply(custom("JobSet", "a04-set", {"failurePolicy": {"maxRestarts": 3}}))
    c.apply(job("a04-set-workers-0", 2, run=2, lab={"exit-code": 1}), owner=owner)
    c.wait_condition("Job", "a04-set-workers-0", "Failed")
    c.patch("JobSet", "a04-set", {"status": {"restarts": 1}}, status=True)
    c.delete("Job", "a04-set-workers-0")
    c.wait_gone("Job", "a04-set-workers-0")
    c.apply(job("a04-set-workers-0", 2, run=2), owner=owner)
    c.wait_condition("Job", "a04-set-workers-0", "Complete")
    done = condition("Completed", reason="AllJobsCompleted")
    c.patch("JobSet", "a04-set", {"status": {"restarts": 1, "conditions": [done]}}, status=True)


@situation(
    "A PyTorchJob whose operator replaced a failed worker: two attempts.",
    ExpectedJob("a05-torch", "succeeded", attempts=2),
)
def attempts_of_kubeflow(c: Cluster) -> None:
    owner = c.apply(custom("PyTorchJob", "a05-torch", {"runPolicy": {"backoffLimit": 3}}))
    c.apply(pod("a05-torch-worker-0", 2, lab={"run-seconds": 2, "exit-code": 1}), owner=owner)
    c.wait_pods("a05-torch", 1, "Failed")
    restarting = condition("Restarting", reason="PyTorchJobRestarting")
    status = {"conditions": [restarting], "replicaStatuses": {"Worker": {"failed": 1}}}
    c.patch("PyTorchJob", "a05-torch", {"status": status}, status=True)
    c.delete("Pod", "a05-torch-worker-0")
    c.wait_gone("Pod", "a05-torch-worker-0")
    c.apply(pod("a05-torch-worker-0", 2, lab={"run-seconds": 2}), owner=owner)
    c.wait_pods("a05-torch", 1, "Succeeded")
    done = condition("Succeeded", reason="PyTorchJobSucceeded")
    c.patch("PyTorchJob", "a05-torch", {"status": {"conditions": [done]}}, status=True)


@situation(
    "A RayJob that failed once and was tried again by its operator: two attempts.",
    ExpectedJob("a06-ray", "succeeded", attempts=2),
)
def attempts_of_ray(c: Cluster) -> None:
    owner = c.apply(custom("RayJob", "a06-ray", {"backoffLimit": 2}))
    c.apply(pod("a06-ray-one", 2, lab={"run-seconds": 2, "exit-code": 1}), owner=owner)
    c.wait_pods("a06-ray-one", 1, "Failed")
    status = {"failed": 1, "succeeded": 0, "jobDeploymentStatus": "Retrying"}
    c.patch("RayJob", "a06-ray", {"status": status}, status=True)
    c.apply(pod("a06-ray-two", 2, lab={"run-seconds": 2}), owner=owner)
    c.wait_pods("a06-ray-two", 1, "Succeeded")
    status = {"failed": 1, "succeeded": 1, "jobStatus": "SUCCEEDED"}
    status["jobDeploymentStatus"] = "Complete"
    c.patch("RayJob", "a06-ray", {"status": status}, status=True)


@situation(
    "Retried until the limit: all pods failed; the attempts are as many as the failed pods.",
    ExpectedJob("a07-limit", "failed", attempts=3, gpu_seconds=6),
)
def attempts_until_limit(c: Cluster) -> None:
    c.apply(job("a07-limit", 2, run=1, lab={"exit-code": 1}, backoffLimit=2))
    c.wait_condition("Job", "a07-limit", "Failed")


@situation(
    "Suspended and resumed by a queue is a requeue: the wait begins anew at the resumption.",
    ExpectedJob("a08-requeue", "succeeded", queue_wait_seconds=Between(0, 6)),
    notes="The waits of both times in the queue are short; the 3 s of suspension by hand are none.",
)
def attempts_by_requeue(c: Cluster) -> None:
    c.apply(job("a08-requeue", 1))
    c.wait_pods("a08-requeue", 1)
    c.wait(1)
    c.patch("Job", "a08-requeue", {"spec": {"suspend": True}})
    c.wait_pods("a08-requeue", 0)
    c.wait(3)
    c.patch("Job", "a08-requeue", {"spec": {"suspend": False}})
    name = wait_for_pod(c, "a08-requeue", "")
    c.wait(1)
    c.end_pod(name)
    c.wait_condition("Job", "a08-requeue", "Complete")


@situation(
    "The back-off limit per index: one index fails twice, the other is done; one job.",
    ExpectedJob("a09-index", "failed", "unknown", "exit", attempts=2),
)
def attempts_of_an_index(c: Cluster) -> None:
    lab = {"run-seconds": 2, "exit-code-1": 1}
    more: dict[str, Any] = {"backoffLimit": 6, "backoffLimitPerIndex": 1}
    c.apply(job("a09-index", 1, pods=2, lab=lab, **more))
    c.wait_condition("Job", "a09-index", "Failed")
