"""Part 3: kinds are found by discovery, and one submission is one job, never its parts."""

from .manifests import condition, custom, job, manifest, pod
from .scenario import Cluster, ExpectedJob, Manifest, Situation, situation


def run_below(c: Cluster, owner: Manifest, name: str, gpus: int, exit_code: int = 0) -> None:
    """Let a pod of an owner run for 3 s."""
    c.apply(pod(name, gpus, lab={"run-seconds": 3, "exit-code": exit_code}), owner=owner)
    c.wait_pods(name, 1, "Failed" if exit_code else "Succeeded")


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


def _set_status(c: Cluster, kind: str, name: str, *conditions: Manifest) -> None:
    c.patch(kind, name, {"status": {"conditions": list(conditions)}}, status=True)


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
    why = f"A {kind} of two workers is one job of both pods' time: 2 GPUs x (3 + 4 s)."
    return Situation(f"kind-{kind.lower()}", why, script, (expected,))


TRAINING_OPERATOR = [
    _make_training_kind(number, kind)
    for number, kind in enumerate(("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob"), 30)
]


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
    "Volcano's Job that failed says so by its phase, and its pod says why.",
    ExpectedJob("k07-volcano", "failed", "unknown", "segfault"),
)
def kind_volcano_failed(c: Cluster) -> None:
    owner = c.apply(custom("VolcanoJob", "k07-volcano", {"queue": "default"}))
    run_below(c, owner, "k07-volcano-worker-0", 1, 139)
    status = {"state": {"phase": "Failed"}, "failed": 1}
    c.patch("VolcanoJob", "k07-volcano", {"status": status}, status=True)


@situation(
    "A LeaderWorkerSet makes StatefulSets and pods: one job, ended when it is deleted.",
    ExpectedJob("k08-lws", "cancelled", num_gpus=4),
    absent=("k08-lws-0",),
)
def kind_leaderworkerset(c: Cluster) -> None:
    top = c.apply(custom("LeaderWorkerSet", "k08-lws", {"replicas": 1}))
    spec = {
        "replicas": 2,
        "serviceName": "k08-lws",
        "selector": {"matchLabels": {"app": "k08-lws"}},
        "template": pod("any", 2, labels={"app": "k08-lws"}, restart="Always"),
    }
    c.apply(manifest("apps/v1", "StatefulSet", "k08-lws-0", spec), owner=top)
    c.wait_pods("k08-lws", 2)
    c.wait(2)
    c.delete("LeaderWorkerSet", "k08-lws")
    c.wait_pods("k08-lws", 0)


@situation(
    "A TrainJob that failed by its condition, with a pod out of memory below three owners.",
    ExpectedJob("k09-train", "failed", "user", "host_oom", gpu_seconds=8),
)
def kind_trainjob_failed(c: Cluster) -> None:
    top = c.apply(custom("TrainJob", "k09-train"))
    inner = c.apply(custom("JobSet", "k09-train"), owner=top)
    lab = {"container-reason": "OOMKilled", "exit-code": 137}
    c.apply(job("k09-train-node-0", 4, run=2, lab=lab), owner=inner)
    c.wait_condition("Job", "k09-train-node-0", "Failed")
    _set_status(c, "JobSet", "k09-train", condition("Failed", reason="FailedJobs"))
    _set_status(c, "TrainJob", "k09-train", condition("Failed", reason="JobsFailed"))


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


@situation(
    "A CronJob with GPUs submits three Jobs: three jobs, none of them the CronJob.",
    ExpectedJob("k10-cron-1", "succeeded", attempts=1, gpu_seconds=2),
    ExpectedJob("k10-cron-2", "succeeded", attempts=1, gpu_seconds=2),
    ExpectedJob("k10-cron-3", "failed", attempts=1, gpu_seconds=2),
)
def kind_cronjob(c: Cluster) -> None:
    spec = {
        "schedule": "0 0 1 1 *",
        "suspend": True,
        "jobTemplate": {"spec": job("any", 1, run=2)["spec"]},
    }
    owner = c.apply(manifest("batch/v1", "CronJob", "k10-cron", spec))
    for number in (1, 2, 3):
        lab = {"exit-code": int(number == 3)}
        c.apply(job(f"k10-cron-{number}", 1, run=2, lab=lab), owner=owner)
    c.wait_condition("Job", "k10-cron-1", "Complete")
    c.wait_condition("Job", "k10-cron-2", "Complete")
    c.wait_condition("Job", "k10-cron-3", "Failed")
