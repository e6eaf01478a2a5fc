"""Outages at bad moments, clocks that are off, and kinds that come and go."""

from .cluster import Cluster
from .manifests import condition, custom, job, pod
from .scenario import ExpectedJob, outage, waited


@outage(
    "The ledger is killed three times while ten jobs come and go: ten jobs, none twice.",
    *(ExpectedJob(f"p07-many-{index}", "succeeded", attempts=1, gpu_seconds=2)
      for index in range(10)),
)  # fmt: skip
def ledger_killed_thrice(c: Cluster) -> None:
    for index in range(10):
        c.apply(job(f"p07-many-{index}", 1, run=2))
        if index % 3 == 2:
            c.kill("ledger")
            c.wait(1)
            c.start("ledger")
    for index in range(10):
        c.wait_condition("Job", f"p07-many-{index}", "Complete")


@outage(
    "A Job with a TTL of 0 is gone as soon as it ends, under a live feed: a success all the same.",
    ExpectedJob("p13-zero", "succeeded", attempts=1, gpu_seconds=6),
)
def cleaned_up_at_once(c: Cluster) -> None:
    c.apply(job("p13-zero", 2, run=3, ttlSecondsAfterFinished=0))
    c.wait_pods("p13-zero", 1)
    c.wait_gone("Job", "p13-zero")
    c.wait_pods("p13-zero", 0, "Succeeded")


@outage(
    "The API server is away for 5 s while a job runs on: one job, its time unbroken.",
    ExpectedJob("r01-restart", "succeeded", attempts=1,
                gpu_seconds=lambda d: d.gpu_seconds("r01-restart")),
    lab_wide=True,
)  # fmt: skip
def server_restarts(c: Cluster) -> None:
    c.apply(job("r01-restart", 2))
    (only,) = c.wait_pods("r01-restart", 1)
    c.wait_recorded("r01-restart")
    c.stop("apiserver")
    c.wait(5)
    c.start("apiserver")
    c.end_pod(only["metadata"]["name"])
    c.wait_condition("Job", "r01-restart", "Complete")


@outage(
    "A live watch meets 410: the feed lists anew, ends what is gone, and keeps what runs.",
    ExpectedJob("r03-stays", is_open=True, attempts=1),
    ExpectedJob("r03-goes", refused=("failed", "succeeded")),
    lab_wide=True,
)
def server_answers_410(c: Cluster) -> None:
    for name in ("r03-stays", "r03-goes"):
        c.apply(job(name, 2))
        c.wait_pods(name, 1)
        c.wait_recorded(name)
    c.compact()
    c.delete("Job", "r03-goes")
    c.wait_gone("Job", "r03-goes")
    c.compact()
    c.wait_recorded("r03-goes", is_open=False)


@outage(
    "The feed's clock is two minutes behind: begins, ends and waits are the server's.",
    ExpectedJob("r06-behind", "succeeded", gpu_seconds=6, queue_wait_seconds=waited("r06-behind"),
                started=lambda d: d.first_start("r06-behind"),
                ended=lambda d: d.last_end("r06-behind")),
)  # fmt: skip
def clock_behind(c: Cluster) -> None:
    c.set_clock_offset("feed", -120)
    c.apply(job("r06-behind", 2, run=3))
    c.wait_condition("Job", "r06-behind", "Complete")
    c.wait_recorded("r06-behind", is_open=False)
    c.set_clock_offset("feed", 0)


@outage(
    "A kind is defined while the feed runs: its first job is seen.",
    ExpectedJob("r09-new-kind", "succeeded", gpu_seconds=8, num_gpus=2),
    lab_wide=True,
)
def kind_comes_later(c: Cluster) -> None:
    c.remove_kind("mpijobs.kubeflow.org")
    c.wait(2)
    c.add_kind("mpijobs.kubeflow.org")
    owner = c.apply(custom("MPIJob", "r09-new-kind"))
    c.apply(pod("r09-new-kind-worker-0", 2, lab={"run-seconds": 4}), owner=owner)
    c.wait_pods("r09-new-kind", 1, "Succeeded")
    done = condition("Succeeded", reason="MPIJobSucceeded")
    c.patch("MPIJob", "r09-new-kind", {"status": {"conditions": [done]}}, status=True)


@outage(
    "A kind is deleted with its running job: that job ends, never failed; others go on.",
    ExpectedJob("r10-old-kind", refused=("failed", "succeeded")),
    ExpectedJob("r10-stays", is_open=True),
    lab_wide=True,
)
def kind_goes(c: Cluster) -> None:
    owner = c.apply(custom("PaddleJob", "r10-old-kind"))
    c.apply(pod("r10-old-kind-worker-0", 2), owner=owner)
    c.apply(job("r10-stays", 1))
    c.wait_pods("r10", 2)
    c.wait_recorded("r10-old-kind")
    c.remove_kind("paddlejobs.kubeflow.org")
    c.wait_pods("r10-old-kind", 0)
    c.wait_recorded("r10-old-kind", is_open=False)
    c.add_kind("paddlejobs.kubeflow.org")


@outage(
    "An account that may not list one kind: it is said once, and all others are followed.",
    ExpectedJob("r12-seen", "succeeded", gpu_seconds=6),
    logged_once=r"(?i)rayjobs.*(forbidden|may not)|(forbidden|may not).*rayjobs",
)
def kind_is_forbidden(c: Cluster) -> None:
    c.kill("feed")  # it could say so too
    c.forbid("rayjobs.ray.io")
    c.start("feed")
    c.apply(job("r12-seen", 2, run=3))
    c.wait_condition("Job", "r12-seen", "Complete")
    c.wait_recorded("r12-seen", is_open=False)
    c.wait(5)
    c.allow_again()
