"""Part 5: two feeds at once, kills at bad moments, long absences, and parts of the server away."""

from .manifests import job
from .scenario import Between, Cluster, ExpectedJob, outage, waited


@outage(
    "Two feeds at once for a job's whole life: the record is as one feed writes it.",
    ExpectedJob("p01-two", "succeeded", attempts=1, gpu_seconds=8),
)
def feeds_two_at_once(c: Cluster) -> None:
    c.start("feed-2")
    c.apply(job("p01-two", 2, run=4))
    c.wait_condition("Job", "p01-two", "Complete")
    c.wait_recorded("p01-two", is_open=False)
    c.stop("feed-2")


@outage(
    "The standby feed is killed: nothing changes for the one that leads.",
    ExpectedJob("p02-standby", "succeeded", attempts=1, gpu_seconds=8),
)
def feeds_standby_is_killed(c: Cluster) -> None:
    c.start("feed-2")
    c.apply(job("p02-standby", 2, run=4))
    c.wait_pods("p02-standby", 1)
    c.kill("feed-2")
    c.wait_condition("Job", "p02-standby", "Complete")


@outage(
    "Each of two feeds is killed in turn while a job runs and ends: told once, by whoever leads.",
    ExpectedJob("p03-turns", "succeeded", attempts=1,
                gpu_seconds=lambda d: d.gpu_seconds("p03-turns")),
)  # fmt: skip
def feeds_in_turns(c: Cluster) -> None:
    c.start("feed-2")
    c.apply(job("p03-turns", 2))
    (only,) = c.wait_pods("p03-turns", 1)
    for _ in range(2):
        c.kill("feed")
        c.wait(3)
        c.start("feed")
        c.kill("feed-2")
        c.wait(3)
        c.start("feed-2")
    c.end_pod(only["metadata"]["name"])
    c.wait_condition("Job", "p03-turns", "Complete")
    c.wait_recorded("p03-turns", is_open=False)
    c.stop("feed-2")


@outage(
    "The feed is killed ten times within one job's life: one job, one attempt, no second bill.",
    ExpectedJob("p04-ten", "succeeded", attempts=1,
                gpu_seconds=lambda d: d.gpu_seconds("p04-ten")),
)  # fmt: skip
def feed_killed_ten_times(c: Cluster) -> None:
    c.apply(job("p04-ten", 2))
    (only,) = c.wait_pods("p04-ten", 1)
    for _ in range(10):
        c.kill("feed")
        c.start("feed")
        c.wait(0.7)
    c.end_pod(only["metadata"]["name"])
    c.wait_condition("Job", "p04-ten", "Complete")


@outage(
    "The feed dies in the moment a pod fails, and lives when the next pod runs: two attempts.",
    ExpectedJob("p05-moment", "succeeded", attempts=2,
                gpu_seconds=lambda d: d.gpu_seconds("p05-moment")),
)  # fmt: skip
def feed_killed_between_attempts(c: Cluster) -> None:
    c.apply(job("p05-moment", 2, backoffLimit=3))
    (first,) = c.wait_pods("p05-moment", 1)
    c.wait_recorded("p05-moment")
    c.kill("feed")
    c.end_pod(first["metadata"]["name"], 1)
    c.wait_pods("p05-moment", 0)
    (second,) = c.wait_pods("p05-moment", 1)
    c.start("feed")
    c.wait(2)
    c.end_pod(second["metadata"]["name"])
    c.wait_condition("Job", "p05-moment", "Complete")


@outage(
    "Ledger and API server are away together, then come back in turn: an exact record.",
    ExpectedJob("p06-both", "succeeded", attempts=1,
                gpu_seconds=lambda d: d.gpu_seconds("p06-both")),
    lab_wide=True,
)  # fmt: skip
def ledger_and_server_away(c: Cluster) -> None:
    c.apply(job("p06-both", 2))
    (only,) = c.wait_pods("p06-both", 1)
    c.stop("ledger")
    c.stop("apiserver")
    c.wait(3)
    c.start("apiserver")
    c.end_pod(only["metadata"]["name"])
    c.wait_condition("Job", "p06-both", "Complete")
    c.start("ledger")


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
    "Thirty jobs come, end and are cleaned up while the ledger is away: all thirty, exactly.",
    *(ExpectedJob(f"p08-hour-{index:02d}", "succeeded", attempts=1, gpu_seconds=1)
      for index in range(30)),
    notes="The issue's hour, in 15 s: what the feed has to keep is what counts.",
)  # fmt: skip
def ledger_away_for_long(c: Cluster) -> None:
    c.stop("ledger")
    for index in range(30):
        c.apply(job(f"p08-hour-{index:02d}", 1, run=1, ttlSecondsAfterFinished=2))
    for index in range(30):
        c.wait_gone("Job", f"p08-hour-{index:02d}")
    c.start("ledger")


@outage(
    "A token is rotated in its file while all goes well: nobody notices.",
    ExpectedJob("p09-rotated", "succeeded", attempts=1,
                gpu_seconds=lambda d: d.gpu_seconds("p09-rotated")),
)  # fmt: skip
def token_is_rotated(c: Cluster) -> None:
    c.apply(job("p09-rotated", 2))
    (only,) = c.wait_pods("p09-rotated", 1)
    c.rotate_token()
    c.wait(13)
    c.end_pod(only["metadata"]["name"])
    c.wait_condition("Job", "p09-rotated", "Complete")


@outage(
    "The controllers are away: pods end, the Job does not say so yet; nothing is billed meanwhile.",
    ExpectedJob("p10-controllers", "succeeded", gpu_seconds=6,
                ended=Between(lambda d: d.last_end("p10-controllers") - 1,
                              lambda d: d.at["done"] + 2)),
    lab_wide=True,
)  # fmt: skip
def controllers_away(c: Cluster) -> None:
    c.apply(job("p10-controllers", 2, run=3))
    c.wait_pods("p10-controllers", 1)
    c.stop("controllers")
    c.wait_pods("p10-controllers", 1, "Succeeded")
    c.wait(5)
    c.start("controllers")
    c.wait_condition("Job", "p10-controllers", "Complete")
    c.note("done")


@outage(
    "The scheduler is away for 5 s: that is queue wait like any other.",
    ExpectedJob("p11-scheduler", "succeeded", gpu_seconds=4,
                queue_wait_seconds=waited("p11-scheduler")),
    lab_wide=True,
)  # fmt: skip
def scheduler_away(c: Cluster) -> None:
    c.stop("scheduler")
    c.apply(job("p11-scheduler", 2, run=2))
    c.wait(5)
    c.start("scheduler")
    c.wait_condition("Job", "p11-scheduler", "Complete")


@outage(
    "The kubelets are away for 5 s: the pod's times are what the kubelet writes later.",
    ExpectedJob("p12-kubelets", "succeeded", attempts=1,
                gpu_seconds=lambda d: d.gpu_seconds("p12-kubelets")),
    lab_wide=True,
)  # fmt: skip
def kubelets_away(c: Cluster) -> None:
    c.apply(job("p12-kubelets", 2, run=3))
    c.wait_pods("p12-kubelets", 1)
    c.stop("kwok")
    c.wait(5)
    c.start("kwok")
    c.wait_condition("Job", "p12-kubelets", "Complete")


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
    "Of forty jobs half are deleted while the feed is away: those end, the others run on.",
    *(ExpectedJob(f"p14-half-{index:02d}", is_open=not index % 2,
                  refused=("failed", "succeeded") if index % 2 else ()) for index in range(40)),
)  # fmt: skip
def half_is_deleted_unseen(c: Cluster) -> None:
    for index in range(40):
        c.apply(job(f"p14-half-{index:02d}", 0, labels=_opt_in(index)))
    c.wait_pods("p14-half", 40)
    c.wait_recorded("p14-half-39")
    c.stop("feed")
    for index in range(1, 40, 2):
        c.delete("Job", f"p14-half-{index:02d}")
    c.wait_pods("p14-half", 20)
    c.start("feed")
    c.wait_recorded("p14-half-39", is_open=False)


def _opt_in(index: int) -> dict[str, str]:
    """Return the label that takes a job without GPUs in: forty of them need no GPUs."""
    return {"lockstep/job-id": f"p14-half-{index:02d}"}
