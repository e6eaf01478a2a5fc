"""Part 3: kinds that nobody listed, and resource claims in place of limits (part 1)."""

from .manifests import OPT_IN, condition, custom, job, manifest, pod
from .scenario import Cluster, ExpectedJob, Manifest, situation

DRIVER = "gpu.example.com"


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
    "An unknown owner says Failed, and its pod was evicted by the scheduler: preempted.",
    ExpectedJob("n02-owner", "preempted", cause="preemption"),
)
def found_and_preempted(c: Cluster) -> None:
    owner = own(c, "n02-owner")
    lab = {"run-seconds": 2, "exit-code": 143, "disruption": "PreemptionByScheduler"}
    c.apply(pod("n02-owner-0", 1, lab=lab), owner=owner)
    c.wait_pods("n02-owner", 1, "Failed")
    finish(c, "n02-owner", "Failed", "PodsFailed")


@situation(
    "An unknown owner without conditions is open while it exists, and cancelled when deleted.",
    ExpectedJob("n03-owner", "cancelled", gpu_seconds=lambda d: d.gpu_seconds("n03-owner")),
)
def found_and_deleted(c: Cluster) -> None:
    owner = own(c, "n03-owner")
    c.apply(pod("n03-owner-0", 1), owner=owner)
    c.wait_pods("n03-owner", 1)
    c.wait_recorded("n03-owner")
    c.delete("Trainium", "n03-owner")
    c.wait_gone("Trainium", "n03-owner")
    c.wait_pods("n03-owner", 0)


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
    "A Deployment that serves with GPUs asks for accelerators: a job by its owner, not a replica.",
    ExpectedJob("n06-serve", is_open=True, num_gpus=2),
)
def found_deployment_with_gpus(c: Cluster) -> None:
    labels = {"app": "n06-serve"}
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": labels},
        "template": pod("any", 1, labels=labels, restart="Always"),
    }
    c.apply(manifest("apps/v1", "Deployment", "n06-serve", spec))
    c.wait_pods("n06-serve", 2)
    c.wait(2)


@situation(
    "A claim for two devices in place of limits: 2 GPUs for 3 s are 6 GPU-seconds.",
    ExpectedJob("n07-claim", "succeeded", gpu_seconds=6, num_gpus=2),
)
def claim_by_template(c: Cluster) -> None:
    add_devices(c, "n07-node", 4)
    c.apply(describe_claim("n07-devices", 2))
    c.apply(claim_devices(job("n07-claim", 0, node="n07-node", run=3), "n07-devices", 2))
    c.wait_condition("Job", "n07-claim", "Complete")


@situation(
    "More devices than there are: the claim is never allocated, the job waits and costs nothing.",
    ExpectedJob("n08-claim", is_open=True, gpu_seconds=0),
)
def claim_that_is_never_allocated(c: Cluster) -> None:
    add_devices(c, "n08-node", 1)
    c.apply(describe_claim("n08-devices", 2))
    c.apply(claim_devices(job("n08-claim", 0, node="n08-node"), "n08-devices", 2))
    c.wait_pods("n08-claim", 1, "Pending")
    c.wait(4)


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
