"""Kinds are found by discovery or by their pods, and one submission is one job, never its parts."""

from .cluster import Cluster
from .manifests import OPT_IN, Manifest, condition, custom, job, manifest, pod
from .scenario import ExpectedJob, Situation, situation

DRIVER = "gpu.example.com"
TRAINING_KINDS = ("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob")


def run_below(c: Cluster, owner: Manifest, name: str, gpus: int, exit_code: int = 0) -> None:
    """Let a pod of an owner run for 3 s."""
    c.apply(pod(name, gpus, lab={"run-seconds": 3, "exit-code": exit_code}), owner=owner)
    c.wait_pods(name, 1, "Failed" if exit_code else "Succeeded")


def _set_status(c: Cluster, kind: str, name: str, *conditions: Manifest) -> None:
    c.patch(kind, name, {"status": {"conditions": list(conditions)}}, status=True)


def _make_training_kind(number: int, kind: str) -> Situation:
    """Return a situation of one kind of Kubeflow's training operator."""
    name = f"k{number}-{kind.lower()}"

    def script(c: Cluster) -> None:
        owner = c.apply(custom(kind, name))
        running = condition("Running", reason=f"{kind}Running")
        c.apply(pod(f"{name}-worker-0", 2, lab={"run-seconds": 3}), owner=owner)
        c.apply(pod(f"{name}-worker-1", 2, lab={"run-seconds": 4}), owner=owner)
        _set_status(c, kind, name, running)
        c.wait_pods(name, 2, "Succeeded")
        done = condition("Succeeded", reason=f"{kind}Succeeded")
        _set_status(c, kind, name, running | {"status": "False"}, done)

    expected = ExpectedJob(name, "succeeded", gpu_seconds=14, num_gpus=4, attempts=1)
    return Situation(f"kind-{kind.lower()}", script, (expected,))


TRAINING_OPERATOR = [
    _make_training_kind(number, kind) for number, kind in enumerate(TRAINING_KINDS, 30)
]


@situation(
    "A JobSet of two Jobs is one job of all their pods; the Jobs are none of their own.",
    ExpectedJob("k01-set", "succeeded", gpu_seconds=18, num_gpus=6, attempts=1),
    absent=("k01-set-leader", "k01-set-worker"),
)
def kind_jobset(c: Cluster) -> None:
    owner = c.apply(custom("JobSet", "k01-set"))
    c.apply(job("k01-set-leader-0", 2, run=3), owner=owner)
    c.apply(job("k01-set-worker-0", 2, pods=2, run=3), owner=owner)
    c.wait_condition("Job", "k01-set-leader-0", "Complete")
    c.wait_condition("Job", "k01-set-worker-0", "Complete")
    _set_status(c, "JobSet", "k01-set", condition("Completed", reason="AllJobsCompleted"))


@situation(
    "A TrainJob owns a JobSet that owns Jobs that own pods: the TrainJob is the job.",
    ExpectedJob("k02-train", "succeeded", gpu_seconds=24, num_gpus=8),
    absent=("k02-train-node",),
)
def kind_trainjob(c: Cluster) -> None:
    top = c.apply(custom("TrainJob", "k02-train", {"runtimeRef": {"name": "torch"}}))
    inner = c.apply(custom("JobSet", "k02-train"), owner=top)
    c.apply(job("k02-train-node-0", 4, pods=2, run=3), owner=inner)
    c.wait_condition("Job", "k02-train-node-0", "Complete")
    _set_status(c, "JobSet", "k02-train", condition("Completed", reason="AllJobsCompleted"))
    _set_status(c, "TrainJob", "k02-train", condition("Complete", reason="JobsCompleted"))


@situation(
    "An MPIJob: its launcher is a Job without GPUs, its workers are pods; together one job.",
    ExpectedJob("k03-mpi", "succeeded", gpu_seconds=lambda d: d.gpu_seconds("k03-mpi-worker")),
    absent=("k03-mpi-launcher",),
)
def kind_mpijob(c: Cluster) -> None:
    owner = c.apply(custom("MPIJob", "k03-mpi"))
    for index in range(2):
        c.apply(pod(f"k03-mpi-worker-{index}", 4), owner=owner)
    c.wait_pods("k03-mpi-worker", 2)
    c.apply(job("k03-mpi-launcher", 0, run=3), owner=owner)
    c.wait_condition("Job", "k03-mpi-launcher", "Complete")
    _set_status(c, "MPIJob", "k03-mpi", condition("Succeeded", reason="MPIJobSucceeded"))
    for index in range(2):
        c.delete("Pod", f"k03-mpi-worker-{index}")
    c.wait_pods("k03-mpi-worker", 0)


@situation(
    "A RayJob owns a RayCluster that owns pods: the RayJob is the job, at its own status.",
    ExpectedJob("k04-rayjob", "succeeded", gpu_seconds=12, num_gpus=4),
    absent=("k04-rayjob-raycluster",),
)
def kind_rayjob(c: Cluster) -> None:
    top = c.apply(custom("RayJob", "k04-rayjob"))
    inner = c.apply(custom("RayCluster", "k04-rayjob-raycluster"), owner=top)
    run_below(c, inner, "k04-rayjob-raycluster-worker", 4)
    status = {"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Complete"}
    c.patch("RayJob", "k04-rayjob", {"status": status}, status=True)


@situation(
    "A RayCluster that nobody submitted by a RayJob is a job while its pods hold GPUs.",
    ExpectedJob("k05-raycluster", is_open=True, num_gpus=6),
)
def kind_raycluster(c: Cluster) -> None:
    owner = c.apply(custom("RayCluster", "k05-raycluster"))
    c.apply(pod("k05-raycluster-head", 2), owner=owner)
    c.apply(pod("k05-raycluster-worker", 4), owner=owner)
    c.wait_pods("k05-raycluster", 2)
    c.patch("RayCluster", "k05-raycluster", {"status": {"state": "ready"}}, status=True)
    c.wait(3)


@situation(
    "Volcano's Job has the kind of the core's and another group: it is seen, and once.",
    ExpectedJob("k06-volcano", "succeeded", gpu_seconds=12, num_gpus=4, queue="research"),
)
def kind_volcano(c: Cluster) -> None:
    owner = c.apply(custom("VolcanoJob", "k06-volcano", {"queue": "research"}))
    run_below(c, owner, "k06-volcano-worker-0", 4)
    status = {"state": {"phase": "Completed"}, "succeeded": 1}
    c.patch("VolcanoJob", "k06-volcano", {"status": status}, status=True)


@situation(
    "A launcher in a pod of a TrainJob knows the uid of its JobSet alone: one job, of both.",
    ExpectedJob("k11-train", "not_converged", num_gpus=2, owned_by_launcher=True),
    absent=("k11-launcher",),
)
def kind_trainjob_with_launcher(c: Cluster) -> None:
    top = c.apply(custom("TrainJob", "k11-train"))
    inner = c.apply(custom("JobSet", "k11-train"), owner=top)
    c.apply(job("k11-train-node-0", 2, run=4), owner=inner)
    c.wait_pods("k11-train-node-0", 1)
    alias = f"kubernetes:{inner['metadata']['uid']}"
    c.report_from_launcher("k11-launcher", "not_converged", alias=alias)
    c.wait_condition("Job", "k11-train-node-0", "Complete")
    _set_status(c, "JobSet", "k11-train", condition("Completed", reason="AllJobsCompleted"))
    _set_status(c, "TrainJob", "k11-train", condition("Complete", reason="JobsCompleted"))


def own(c: Cluster, name: str, labels: dict[str, str] | None = None) -> Manifest:
    """Create an object of a kind that no importer has heard of."""
    return c.apply(custom("Trainium", name, {}, labels))


def finish(c: Cluster, name: str, outcome: str, reason: str) -> None:
    """Write its last condition."""
    done = condition(outcome, reason=reason)
    c.patch("Trainium", name, {"status": {"conditions": [done]}}, status=True)


@situation(
    "Any other owner whose pods ask for GPUs is a job; its condition Complete is a success.",
    ExpectedJob("n01-owner", "succeeded", gpu_seconds=12, num_gpus=4),
)
def found_by_its_pods(c: Cluster) -> None:
    owner = own(c, "n01-owner")
    c.apply(pod("n01-owner-0", 4, lab={"run-seconds": 3}), owner=owner)
    c.wait_pods("n01-owner", 1, "Succeeded")
    finish(c, "n01-owner", "Complete", "Done")


@situation(
    "An unknown kind without pods of GPUs never becomes a job, whatever its conditions say.",
    absent=("n04-owner",),
)
def found_without_gpus(c: Cluster) -> None:
    owner = own(c, "n04-owner")
    c.apply(pod("n04-owner-0", 0, lab={"run-seconds": 1}), owner=owner)
    c.wait_pods("n04-owner", 1, "Succeeded")
    finish(c, "n04-owner", "Failed", "NoReason")


@situation(
    "The label stands on the pods only, as a template carries it: it names the job.",
    ExpectedJob("n05-label", "succeeded", gpu_seconds=6, pods="n05-object"),
    absent=("n05-object",),
)
def found_by_label_of_pods(c: Cluster) -> None:
    labels = {"labels": {OPT_IN: "n05-label"}}
    c.apply(job("n05-object", 2, run=3, template_spec=labels))
    c.wait_condition("Job", "n05-object", "Complete")


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
