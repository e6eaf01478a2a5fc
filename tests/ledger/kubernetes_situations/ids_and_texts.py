"""Ids belong to the first namespace, runs follow runs, and any text is a text."""

from .cluster import Cluster
from .manifests import OPT_IN, Manifest, job, pod
from .scenario import ExpectedJob, situation

LONG = "i06-" + "m" * 249  # the API admits 253 characters as a name of a pod, 63 as a label


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


@situation(
    "A pod's name of the most characters is recorded and readable.", ExpectedJob(LONG, "succeeded")
)
def id_of_253_characters(c: Cluster) -> None:
    c.apply(pod(LONG, 1, lab={"run-seconds": 2}))
    c.wait_pods("i06-", 1, "Succeeded")


@situation(
    "A message with control characters, line feeds and what looks like markup is a text.",
    ExpectedJob("i08-markup", "preempted", cause="eviction"),
)
def text_with_control_characters(c: Cluster) -> None:
    c.apply(pod("i08-markup", 1))
    c.wait_pods("i08-markup", 1)
    c.wait(1)
    message = "<script>alert(1)</script>\x1b[31m\x07\r\n{{7*7}}\t'; DROP TABLE jobs; --"
    c.end_pod("i08-markup", 137, pod_reason="Evicted", message=message)
    c.wait_pods("i08-markup", 1, "Failed")


@situation(
    "The launcher said not_converged of the id that the label gives: its word stands.",
    ExpectedJob("i10-launcher", "not_converged", owned_by_launcher=True, pods="i10-object"),
)
def launcher_has_the_word(c: Cluster) -> None:
    c.apply(job("i10-object", 1, run=4, labels={OPT_IN: "i10-launcher"}))
    c.wait_pods("i10-object", 1)
    c.report_from_launcher("i10-launcher", "not_converged")
    c.wait_condition("Job", "i10-object", "Complete")
