"""Kueue's Workload says queue, admission, eviction and priority."""

from .cluster import Cluster
from .manifests import condition, job, workload
from .scenario import Between, ExpectedJob, situation, wait_for_pod, waited

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def submit(c: Cluster, name: str, queue: str, priority: str = "", **spec: object) -> None:
    """Submit a Job as Kueue holds it: suspended, with its Workload."""
    manifest = job(name, 2, suspend=True, labels={QUEUE_LABEL: queue}, **spec)  # type: ignore[arg-type]  # fields of a Job
    owner = c.apply(manifest)
    c.apply(workload(name, queue, priority), owner=owner)


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
    "A queue holds the job suspended for 5 s: it waits from its submission on.",
    ExpectedJob("q01-held", "succeeded", gpu_seconds=6, queue="team-a",
                queue_wait_seconds=waited("q01-held")),
)  # fmt: skip
def queue_waits_from_submission(c: Cluster) -> None:
    submit(c, "q01-held", "team-a", run=3)
    c.wait(5)
    admit(c, "q01-held")
    c.wait_condition("Job", "q01-held", "Complete")


@situation(
    "Preempted, requeued for 4 s, admitted again: two attempts, waits of both queue times.",
    ExpectedJob("q04-again", "succeeded", attempts=2, queue="team-b",
                gpu_seconds=lambda d: d.gpu_seconds("q04-again"),
                queue_wait_seconds=Between(0, 8)),
)  # fmt: skip
def queue_preempts_and_admits_again(c: Cluster) -> None:
    submit(c, "q04-again", "team-b")
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


@situation(
    "Evicted because its pods were not ready in time: nobody preempted it, and it is no failure.",
    ExpectedJob("q05-slow", is_open=True, gpu_seconds=0, refused=("failed", "succeeded")),
)
def queue_evicts_for_pods_ready(c: Cluster) -> None:
    submit(c, "q05-slow", "team-b", lab={"never-starts": "ContainerCreating"})
    admit(c, "q05-slow")
    c.wait_pods("q05-slow", 1, "Pending")
    c.wait(2)
    evict(c, "q05-slow", "PodsReadyTimeout")


@situation(
    "The Workload of a job is a part of it and never a job; its queue is the local queue's name.",
    ExpectedJob("q06-part", "succeeded", attempts=1, queue="vision"),
    absent=("q06-part-workload",),
)
def queue_workload_is_a_part(c: Cluster) -> None:
    owner = c.apply(job("q06-part", 1, run=2, suspend=True, labels={QUEUE_LABEL: "vision"}))
    c.apply(workload("q06-part-workload", "vision", "urgent"), owner=owner)
    admitted = {"status": {"conditions": [condition("Admitted")]}}
    c.patch("Workload", "q06-part-workload", admitted, status=True)
    c.patch("Job", "q06-part", {"spec": {"suspend": False}})
    c.wait_condition("Job", "q06-part", "Complete")


@situation(
    "Deleted while it waited in its queue: cancelled, it never ran, and it cost nothing.",
    ExpectedJob("q07-deleted", "cancelled", gpu_seconds=0),
)
def queue_deleted_while_waiting(c: Cluster) -> None:
    submit(c, "q07-deleted", "team-a")
    c.wait(3)
    c.delete("Job", "q07-deleted")
    c.wait_gone("Job", "q07-deleted")
