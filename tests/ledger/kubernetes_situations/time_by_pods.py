"""GPU-seconds, queue wait and attempts are those of the pods, whatever the object says."""

from .cluster import Cluster
from .manifests import GPU, condition, container, custom, job, pod
from .scenario import ExpectedJob, single, situation, waited

VENDORS = {
    "g11-mig": ("nvidia.com/mig-1g.10gb", 2),
    "g12-amd": ("amd.com/gpu", 4),
    "g13-gaudi": ("habana.ai/gaudi", 8),
    "g13-tpu": ("google.com/tpu", 4),
}
SINGLE = [
    single(
        "Two pods of 4 GPUs that run 3 s and 5 s cost 32 GPU-seconds, not twice the Job's 5 s.",
        ExpectedJob("g01-two", "succeeded", attempts=1, gpu_seconds=32, num_gpus=8),
        4, pods=2, run=(3, 5),
    ),
    single(
        "A pod that is bound but pulls its image for 4 s is pending: it waits and is not billed.",
        ExpectedJob("g04-pull", "succeeded", gpu_seconds=24, queue_wait_seconds=waited("g04-pull")),
        8, run=3, lab={"start-seconds": 4},
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
]  # fmt: skip


@situation(
    "A Job whose pods never find GPUs has not started: it is in the queue and costs nothing.",
    ExpectedJob("g02-none", gpu_seconds=0, is_open=True),
)
def time_never_scheduled(c: Cluster) -> None:
    c.apply(job("g02-none", 8, node="no-such-node"))
    c.wait_pods("g02-none", 1, "Pending")
    c.wait(6)


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
    "A Job shrinks from three pods to one: what was given back is no longer billed.",
    ExpectedJob("g06-shrink", "succeeded", gpu_seconds=lambda d: d.gpu_seconds("g06-shrink")),
)
def time_shrinks(c: Cluster) -> None:
    manifest = job("g06-shrink", 2, pods=3, completions=None, completionMode="NonIndexed")
    c.apply(manifest)
    c.wait_pods("g06-shrink", 3)
    c.wait(3)
    c.patch("Job", "g06-shrink", {"spec": {"parallelism": 1}})
    (last,) = c.wait_pods("g06-shrink", 1)
    c.wait(3)
    c.end_pod(last["metadata"]["name"])
    c.wait_condition("Job", "g06-shrink", "Complete")


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
    "A container that crashes and backs off for 4 s: two runs of 2 s are billed, not 8 s.",
    ExpectedJob("g09-crash", "succeeded", gpu_seconds=lambda d: d.gpu_seconds("g09-crash")),
)
def time_back_off_of_container(c: Cluster) -> None:
    c.apply(job("g09-crash", 2, template_spec={"restart": "OnFailure"}, backoffLimit=3))
    (only,) = c.wait_pods("g09-crash", 1)
    name = only["metadata"]["name"]
    c.wait(2)
    c.restart_container(name, exit_code=1, pause=4)
    c.wait(2)
    c.end_pod(name)
    c.wait_condition("Job", "g09-crash", "Complete")


@situation(
    "The back-off of a Job between its pods (10 s) costs nothing.",
    ExpectedJob("g10-between", "succeeded", attempts=2, gpu_seconds=8),
)
def time_back_off_of_job(c: Cluster) -> None:
    c.apply(job("g10-between", 2, backoffLimit=2))
    (first,) = c.wait_pods("g10-between", 1)
    c.wait(2)
    c.end_pod(first["metadata"]["name"], 1)
    c.wait_pods("g10-between", 0)
    (second,) = c.wait_pods("g10-between", 1)
    c.wait(2)
    c.end_pod(second["metadata"]["name"])
    c.wait_condition("Job", "g10-between", "Complete")


@situation(
    "A MIG slice and the GPUs of other vendors are requested accelerators and count alike.",
    *(
        ExpectedJob(name, "succeeded", gpu_seconds=3 * count, num_gpus=count)
        for name, (_, count) in VENDORS.items()
    ),
)
def time_of_other_accelerators(c: Cluster) -> None:
    c.add_node("g11-node", 0)
    size = {resource: str(count) for resource, count in VENDORS.values()}
    size |= {"cpu": "64", "memory": "512Gi", "pods": "110"}
    c.patch("Node", "g11-node", {"status": {"allocatable": size, "capacity": size}}, status=True)
    for name, (resource, count) in VENDORS.items():
        c.apply(job(name, {resource: count}, node="g11-node", run=3))
    for name in VENDORS:
        c.wait_condition("Job", name, "Complete")


@situation(
    "A sidecar without GPUs and a second container with them: the pod's GPUs are the sum.",
    ExpectedJob("g14-pair", "succeeded", gpu_seconds=12, num_gpus=4),
)
def time_containers_of_a_pod(c: Cluster) -> None:
    manifest = job("g14-pair", 1, run=3)
    manifest["spec"]["template"]["spec"]["containers"] = [
        container(1), container(3, "second"), container(0, "logs"),
    ]  # fmt: skip
    c.apply(manifest)
    c.wait_condition("Job", "g14-pair", "Complete")


@situation(
    "A single pod with GPUs has no owner and is a job of its own.",
    ExpectedJob("g15-alone", "succeeded", attempts=1, gpu_seconds=12, num_gpus=4),
)
def time_single_pod(c: Cluster) -> None:
    c.apply(pod("g15-alone", 4, lab={"run-seconds": 3}))
    c.wait_pods("g15-alone", 1, "Succeeded")


@situation(
    "An init container that takes a GPU does not add to the containers after it: 2 GPUs, not 3.",
    ExpectedJob("g17-init", "succeeded", num_gpus=2, gpu_seconds=6),
)
def time_init_container(c: Cluster) -> None:
    manifest = job("g17-init", 2, run=3)
    first = container({GPU: 1}, "fetch")
    manifest["spec"]["template"]["spec"]["initContainers"] = [first]
    c.apply(manifest)
    c.wait_condition("Job", "g17-init", "Complete")


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
