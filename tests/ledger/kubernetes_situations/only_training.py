"""Only what asks for an accelerator or opts in is a job; the rest is counted, once."""

from .cluster import Cluster
from .manifests import OPT_IN, custom, job, manifest, pod
from .scenario import ExpectedJob, situation


@situation(
    "Jobs without GPUs, failed, of many pods or asking for none, are left out and counted once.",
    absent=("t01-etl", "t02-backup", "t06-loop", "t12-zero"),
    left_out=4,
)
def training_not_without_gpus(c: Cluster) -> None:
    c.apply(job("t01-etl", 0, run=2))
    c.apply(job("t02-backup", 0, run=1, lab={"exit-code": 1}))
    c.apply(job("t06-loop", 0, pods=4, run=1, backoffLimit=3))
    zero = job("t12-zero", 0, run=2)
    containers = zero["spec"]["template"]["spec"]["containers"]
    containers[0]["resources"] = {"limits": {"nvidia.com/gpu": "0"}}
    c.apply(zero)
    c.wait_condition("Job", "t02-backup", "Failed")
    for name in ("t01-etl", "t06-loop", "t12-zero"):
        c.wait_condition("Job", name, "Complete")
    c.patch("Job", "t06-loop", {"metadata": {"labels": {"changed": "yes"}}})
    c.wait(2)


@situation(
    "A CronJob's Jobs, a Deployment, a DaemonSet and a pod without GPUs are no jobs.",
    absent=("t03-rotate", "t05-web", "t10-shell", "t11-logs"),
)
def training_not_of_other_kinds(c: Cluster) -> None:
    cron = {
        "schedule": "0 0 1 1 *",
        "suspend": True,
        "jobTemplate": {"spec": job("any", 0)["spec"]},
    }
    owner = c.apply(manifest("batch/v1", "CronJob", "t03-rotate", cron))
    c.apply(job("t03-rotate-1", 0, run=1, lab={"exit-code": 1}), owner=owner)
    for kind, name in (("Deployment", "t05-web"), ("DaemonSet", "t11-logs")):
        labels = {"app": name}
        template = pod("any", 0, labels=labels, restart="Always", node="gpu-1")
        spec = {"selector": {"matchLabels": labels}, "template": template}
        c.apply(manifest("apps/v1", kind, name, spec))
        c.wait_pods(name, 1)
    c.apply(pod("t10-shell", 0, lab={"run-seconds": 2}))
    c.wait_pods("t10-shell", 1, "Succeeded")
    c.wait_condition("Job", "t03-rotate-1", "Failed")


@situation(
    "The opt-in label takes a Job on CPUs in: a job without GPUs, with an outcome.",
    ExpectedJob("t04-cpu", "succeeded", gpu_seconds=0, attempts=1),
)
def training_by_label(c: Cluster) -> None:
    c.apply(job("t04-cpu", 0, run=2, labels={OPT_IN: "t04-cpu"}))
    c.wait_condition("Job", "t04-cpu", "Complete")


@situation(
    "A JobSet whose second Job alone has GPUs asks for accelerators: it is a job.",
    ExpectedJob("t07-mixed", is_open=True, num_gpus=2),
    absent=("t07-mixed-prep",),
)
def training_by_one_part(c: Cluster) -> None:
    owner = c.apply(custom("JobSet", "t07-mixed"))
    c.apply(job("t07-mixed-prep-0", 0, run=1), owner=owner)
    c.apply(job("t07-mixed-train-0", 2), owner=owner)
    c.wait_condition("Job", "t07-mixed-prep-0", "Complete")
    c.wait_pods("t07-mixed-train-0", 1)
    c.wait(2)


@situation(
    "By --namespace of the second one only, what trains in another is left out.",
    ExpectedJob("t08-inside", "succeeded", namespace="second"),
    absent=("t08-outside",),
    options=("--namespace", "{second_namespace}"),
    exclusive=True,
)
def training_by_namespace(c: Cluster) -> None:
    c.apply(job("t08-outside", 1, run=2))
    inside = job("t08-inside", 1, run=2)
    inside["metadata"]["namespace"] = c.second_namespace
    c.apply(inside)
    c.wait_condition("Job", "t08-outside", "Complete")
    c.wait_pods("t08-inside", 1, "Succeeded")


@situation(
    "By a selector of labels only what matches is taken.",
    ExpectedJob("t09-ours", "succeeded"),
    absent=("t09-theirs",),
    options=("--selector", "team=ours"),
    exclusive=True,
)
def training_by_selector(c: Cluster) -> None:
    c.apply(job("t09-ours", 1, run=2, labels={"team": "ours"}))
    c.apply(job("t09-theirs", 1, run=2, labels={"team": "theirs"}))
    c.wait_condition("Job", "t09-ours", "Complete")
    c.wait_condition("Job", "t09-theirs", "Complete")
