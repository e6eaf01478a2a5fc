"""What a submission is: one job of all its parts, under one id, of the kinds that are found."""

from .cluster import Cluster
from .manifests import OPT_IN, Manifest, condition, custom, job, manifest, pod, workload
from .scenario import Between, ExpectedJob, situation, wait_for_pod

DRIVER = "gpu.example.com"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def _set_status(c: Cluster, kind: str, name: str, *conditions: Manifest) -> None:
    c.patch(kind, name, {"status": {"conditions": list(conditions)}}, status=True)


@situation(
    "A launcher in a pod of a TrainJob knows the uid of its JobSet alone: one job, of both.",
    ExpectedJob("k11-train", "not_converged", num_gpus=2),
    absent=("k11-launcher",),
)
def kind_trainjob_with_launcher(c: Cluster) -> None:
    top = c.apply(custom("TrainJob", "k11-train"))
    inner = c.apply(custom("JobSet", "k11-train"), owner=top)
    c.apply(job("k11-train-node-0", 2, run=4), owner=inner)
    [running] = c.wait_pods("k11-train-node-0", 1)
    alias = f"kubernetes:{inner['metadata']['uid']}"
    host = running["spec"]["nodeName"]
    c.report_from_launcher("k11-launcher", host, "not_converged", alias)
    c.wait_condition("Job", "k11-train-node-0", "Complete")
    _set_status(c, "JobSet", "k11-train", condition("Completed", reason="AllJobsCompleted"))
    _set_status(c, "TrainJob", "k11-train", condition("Complete", reason="JobsCompleted"))


@situation(
    "Any other owner whose pods ask for GPUs is a job; its condition Complete is a success.",
    ExpectedJob("n01-owner", "succeeded", gpu_seconds=12, num_gpus=4),
)
def found_by_its_pods(c: Cluster) -> None:
    owner = c.apply(custom("Trainium", "n01-owner"))
    c.apply(pod("n01-owner-0", 4, lab={"run-seconds": 3}), owner=owner)
    c.wait_pods("n01-owner", 1, "Succeeded")
    _set_status(c, "Trainium", "n01-owner", condition("Complete", reason="Done"))


@situation(
    "A claim for two devices in place of limits: 2 GPUs for 3 s are 6 GPU-seconds.",
    ExpectedJob("n07-claim", "succeeded", gpu_seconds=6, num_gpus=2),
)
def claim_by_template(c: Cluster) -> None:
    add_devices(c, "n07-node", 4)
    c.apply(describe_claim("n07-devices", 2))
    c.apply(claim_devices(job("n07-claim", 0, node="n07-node", run=3), "n07-devices", 2))
    c.wait_condition("Job", "n07-claim", "Complete")


def add_devices(c: Cluster, node: str, count: int) -> None:
    """Add a node whose GPUs a driver of resource claims publishes, in a class of its own."""
    c.add_node(node, 0)
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"gpu-{index}"} for index in range(count)],
    }
    c.apply(manifest("resource.k8s.io/v1", "ResourceSlice", f"{node}-devices", spec))
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    name = node.replace("-node", "-devices") + DRIVER
    c.apply(manifest("resource.k8s.io/v1", "DeviceClass", name, {"selectors": [selector]}))


def describe_claim(name: str, count: int) -> Manifest:
    """Return a template of claims for devices."""
    exactly = {"deviceClassName": name + DRIVER, "count": count}
    spec = {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}
    body = {"spec": spec}
    return manifest("resource.k8s.io/v1", "ResourceClaimTemplate", name, body)


def claim_devices(workload: Manifest, claim: str, count: int) -> Manifest:
    """Let the pods of a Job claim devices; the annotation is for the diary."""
    template = workload["spec"]["template"]
    template["metadata"]["annotations"]["lab/gpus"] = str(count)
    template["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": claim}]
    template["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}
    return workload


def in_second(c: Cluster, manifest: Manifest) -> Manifest:
    """Put an object into the second namespace."""
    manifest["metadata"]["namespace"] = c.second_namespace
    return manifest


@situation(
    "Another namespace sets the id that a running job has: the first job goes on, with its id.",
    ExpectedJob("i01-shared", is_open=True, attempts=1, num_gpus=2, namespace="own"),
)
def id_of_another_namespace(c: Cluster) -> None:
    c.apply(job("i01-first", 2, labels={OPT_IN: "i01-shared"}))
    c.wait_pods("i01-first", 1)
    c.wait_recorded("i01-shared")
    c.apply(in_second(c, job("i01-second", 1, run=2, labels={OPT_IN: "i01-shared"})))
    c.wait_pods("i01-second", 1, "Succeeded")
    c.wait(2)


@situation(
    "Submitted again by its name after it failed: the next run of the same job.",
    ExpectedJob("i03-again", "succeeded", attempts=2, gpu_seconds=8),
)
def id_submitted_again(c: Cluster) -> None:
    c.apply(job("i03-again", 2, run=2, lab={"exit-code": 1}))
    c.wait_condition("Job", "i03-again", "Failed")
    c.wait_recorded("i03-again", is_open=False)
    c.delete("Job", "i03-again")
    c.wait_gone("Job", "i03-again")
    c.wait_pods("i03-again", 0, "Failed")
    c.apply(job("i03-again", 2, run=2))
    c.wait_condition("Job", "i03-again", "Complete")


@situation(
    "A label that comes while the job runs renames it: the new id has all its time, the old none.",
    ExpectedJob("i04-after", "succeeded", attempts=1, pods="i04-before",
                gpu_seconds=lambda d: d.gpu_seconds("i04-before")),
    absent=("i04-before",),
)  # fmt: skip
def id_by_late_label(c: Cluster) -> None:
    c.apply(job("i04-before", 2))
    (only,) = c.wait_pods("i04-before", 1)
    c.wait_recorded("i04-before")
    c.wait(3)
    c.patch("Job", "i04-before", {"metadata": {"labels": {OPT_IN: "i04-after"}}})
    c.wait(3)
    c.end_pod(only["metadata"]["name"])
    c.wait_condition("Job", "i04-before", "Complete")


def admit(c: Cluster, name: str) -> None:
    """Admit a Workload and resume its Job, as Kueue does."""
    conditions = [condition("QuotaReserved"), condition("Admitted")]
    c.patch("Workload", name, {"status": {"conditions": conditions}}, status=True)
    c.patch("Job", name, {"spec": {"suspend": False}})


def evict(c: Cluster, name: str, reason: str) -> None:
    """Evict a Workload and suspend its Job, as Kueue does."""
    conditions = [
        condition("Evicted", reason=reason),
        condition("Admitted", "False", "NoReservation"),
        condition("QuotaReserved", "False", "Pending"),
    ]
    if reason == "Preempted":
        conditions.append(condition("Preempted", reason="InClusterQueue"))
    c.patch("Workload", name, {"status": {"conditions": conditions}}, status=True)
    c.patch("Job", name, {"spec": {"suspend": True}})
    c.wait_pods(name, 0)


@situation(
    "Preempted, requeued for 4 s, admitted again: two attempts, waits of both queue times.",
    ExpectedJob("q04-again", "succeeded", attempts=2, queue="team-b",
                gpu_seconds=lambda d: d.gpu_seconds("q04-again"),
                queue_wait_seconds=Between(0, 8)),
)  # fmt: skip
def queue_preempts_and_admits_again(c: Cluster) -> None:
    owner = c.apply(job("q04-again", 2, suspend=True, labels={QUEUE_LABEL: "team-b"}))
    c.apply(workload("q04-again", "team-b"), owner=owner)
    admit(c, "q04-again")
    c.wait_pods("q04-again", 1)
    c.wait(2)
    evict(c, "q04-again", "Preempted")
    c.wait(4)
    admit(c, "q04-again")
    name = wait_for_pod(c, "q04-again", "")
    c.wait(2)
    c.end_pod(name)
    c.wait_condition("Job", "q04-again", "Complete")
