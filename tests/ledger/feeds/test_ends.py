"""How jobs end, and what is a job: by the words of pods and objects, without a server."""

from typing import Any

import pytest

from ..merge.replay import Replay
from ..stories import Story
from .objects import NOW, condition, container, custom, job, moment, pod
from .test_job_events import Events, Scene


@pytest.fixture(name="scene")
def _scene() -> Scene:
    return Scene()


def verdict(events: Events) -> tuple[str, str | None, str | None]:
    """Outcome, class and cause of the end."""
    fields = events[-1]["fields"]
    assert events[-1]["kind"] == "job_finished"
    return fields["outcome"], fields.get("failure_class"), fields.get("cause")


def disrupted(reason: str) -> list[dict[str, str]]:
    return [condition("DisruptionTarget", reason=reason)]


NODE_FAILED, HOST_OOM = ("failed", "infra", "node_failure"), ("failed", "user", "host_oom")
# What a pod with an exit status says, judged as the launcher judges it (docs/outcomes.md).
PODS: dict[str, tuple[dict[str, Any], tuple[str, str | None, str | None]]] = {
    "1": ({"exit_code": 1}, ("failed", "unknown", "exit")),
    "2": ({"exit_code": 2}, ("failed", "user", "bad_arguments")),
    "75": ({"exit_code": 75}, ("preempted", None, "preemption")),
    "76": ({"exit_code": 76}, HOST_OOM),
    "124": ({"exit_code": 124}, ("time_limit", "user", "time_limit")),
    "126": ({"exit_code": 126}, ("failed", "user", "launch_failure")),
    "127": ({"exit_code": 127}, ("failed", "user", "launch_failure")),
    "134": ({"exit_code": 134}, ("failed", "unknown", "aborted")),
    "135": ({"exit_code": 135}, ("failed", "unknown", "bus_error")),
    "137 by nobody knows whom": ({"exit_code": 137}, ("failed", "unknown", "killed")),
    "139": ({"exit_code": 139}, ("failed", "unknown", "segfault")),
    "over its memory": ({"exit_code": 137, "why": "OOMKilled"}, HOST_OOM),
    "evicted by its kubelet": (
        {"exit_code": 137, "reason": "Evicted"}, ("preempted", None, "eviction"),
    ),
    "its node shuts down": (
        {"exit_code": 143, "reason": "Terminated", "conditions": disrupted("TerminationByKubelet")},
        NODE_FAILED,
    ),
    "its node is deleted": (
        {"exit_code": 143, "conditions": disrupted("DeletionByPodGC")}, NODE_FAILED,
    ),
    "its node is silent": (
        {"exit_code": 143, "conditions": disrupted("DeletionByTaintManager")}, NODE_FAILED,
    ),
    "a higher class takes its node": (
        {"exit_code": 143, "conditions": disrupted("PreemptionByScheduler")},
        ("preempted", None, "preemption"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PODS)
def test_what_a_failed_pod_says_is_the_end_of_its_job(scene: Scene, name: str) -> None:
    words, expected = PODS[name]
    failed = condition("Failed", reason="BackoffLimitExceeded", message="x\x1b[31m<b>")
    top = job("a", conditions=[failed])
    events = scene.show(top, pod("a-0", top, begin=2, end=7, **words), at=9)
    assert verdict(events) == expected
    assert events[-1]["fields"]["reason"].isprintable()


@pytest.mark.parametrize("reason", ["BackoffLimitExceeded", "MaxFailedIndexesExceeded"])
def test_the_first_pod_that_fails_decides(scene: Scene, reason: str) -> None:
    top = job("a", conditions=[condition("Failed", reason=reason)])
    first = pod("a-0", top, begin=2, end=7, exit_code=137, why="OOMKilled")
    others = [pod(f"a-{index}", top, begin=2, end=8, exit_code=143) for index in (1, 2)]
    assert verdict(scene.show(top, *others, first, at=9)) == HOST_OOM


WAITING: dict[str, tuple[dict[str, Any], set[str]]] = {
    "its image": ({"why": "ImagePullBackOff"}, {"launch_failure"}),
    "its image's name": ({"why": "InvalidImageName"}, {"launch_failure"}),
    "its configuration": ({"why": "CreateContainerConfigError"}, {"launch_failure"}),
    "a node": (
        {"conditions": [condition("PodScheduled", status="False", reason="Unschedulable")]},
        {"launch_failure", "launch_system"},
    ),
}


@pytest.mark.parametrize("name", WAITING)
def test_what_waits_until_its_deadline_never_ran_and_costs_nothing(scene: Scene, name: str) -> None:
    words, causes = WAITING[name]
    top = job("a", conditions=[condition("Failed", reason="DeadlineExceeded")])
    events = scene.show(top, pod("a-0", top, **words), at=9)
    assert [event["kind"] for event in events] == ["job_submitted", "job_finished"]
    outcome, _, cause = verdict(events)
    assert (outcome, cause in causes) == ("failed", True), cause


def test_a_job_that_runs_until_its_deadline_has_reached_its_time_limit(scene: Scene) -> None:
    top = job("a", conditions=[condition("Failed", reason="DeadlineExceeded")])
    events = scene.show(top, pod("a-0", top, begin=2, end=9, exit_code=143), at=9)
    assert verdict(events)[0] == "time_limit"


KUBEFLOW = {"status": {"conditions": [condition("Running", 3, "False"), condition("Succeeded")]}}
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{kind: (kind, "kubeflow.org/v1", KUBEFLOW)
       for kind in ("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob")},
    "MPIJob": ("MPIJob", "kubeflow.org/v2beta1", KUBEFLOW),
    "JobSet": ("JobSet", "jobset.x-k8s.io/v1alpha2",
               {"status": {"conditions": [condition("Completed")]}}),
    "RayJob": ("RayJob", "ray.io/v1",
               {"status": {"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Complete"}}),
    "Volcano": ("Job", "batch.volcano.sh/v1alpha1",
                {"spec": {"queue": "research"}, "status": {"state": {"phase": "Completed"}}}),
    "any other": ("Trainium", "example.com/v1",
                  {"status": {"conditions": [condition("Complete")]}}),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_an_object_of_any_kind_whose_parts_have_gpus_is_one_job(scene: Scene, name: str) -> None:
    kind, version, parts = KINDS[name]
    top = custom(kind, version, **parts)
    inner = custom("Job", "batch/v1", "a-worker", top)
    pods = [pod(f"a-{index}", inner, begin=2, end=5) for index in range(2)]
    events = scene.show(top, inner, *pods, pod("a-launcher", inner, begin=2, end=5, gpus=0), at=9)
    assert {event["job_id"] for event in events} == {"team-a/a"}
    assert verdict(events)[0] == "succeeded"
    assert events[0]["fields"]["num_gpus"] == 4
    assert events[0]["fields"].get("queue") == ("research" if name == "Volcano" else None)


def test_a_cluster_of_ray_is_a_job_while_its_pods_have_gpus(scene: Scene) -> None:
    top = custom("RayCluster", "ray.io/v1", status={"state": "ready"})
    events = scene.show(top, pod("a-head", top, begin=2), at=9)
    assert [event["kind"] for event in events][:2] == ["job_submitted", "job_started"]
    assert "job_finished" not in {event["kind"] for event in events}


def test_what_a_submitter_makes_is_a_job_of_its_own(scene: Scene) -> None:
    cron = custom("CronJob", "batch/v1", "nightly")
    runs = [custom("Job", "batch/v1", f"nightly-{number}", cron) for number in range(2)]
    events = scene.show(*runs, *(pod(r["metadata"]["name"], r, begin=2) for r in runs), at=9)
    assert {event["job_id"] for event in events} == {"team-a/nightly-0", "team-a/nightly-1"}


def test_a_single_pod_is_a_job_with_the_gpus_of_its_containers(scene: Scene) -> None:
    single = pod("p", begin=2, end=5)
    single["spec"]["containers"] = [
        container(1), container(3, "second"), container(0, "logs"),
    ]  # fmt: skip
    single["spec"]["initContainers"] = [container(2, "fetch")]
    events = scene.show(single, at=9)
    assert events[0]["fields"]["num_gpus"] == 4
    assert verdict(events)[0] == "succeeded"


def test_a_label_takes_in_a_job_without_gpus_and_names_it(scene: Scene) -> None:
    top = job("etl")
    top["metadata"]["labels"] = {"lockstep/job-id": "mine"}
    top["spec"]["template"]["spec"]["containers"] = [container(0)]
    events = scene.show(top, pod("etl-0", top, gpus=0, begin=2), at=9)
    assert [event["kind"] for event in events][:2] == ["job_submitted", "job_started"]


def test_containers_that_back_off_cost_nothing_between_their_runs(scene: Scene) -> None:
    top = job("a")
    again = pod("a-0", top, begin=8, restarts=1, last=(2, 4, 1))
    held = [e for e in scene.show(top, again, at=9) if e["kind"].startswith("resources_")]
    assert [round(event["time"] - NOW) for event in held] == [2, 4, 8]


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [("Preempted", "preempted"), ("NodeFailures", "failed"), ("PodsReadyTimeout", "cancelled")],
)
def test_a_queue_that_takes_a_job_out_says_why(scene: Scene, reason: str, outcome: str) -> None:
    top = job("a")
    top["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    scene.show(top, pod("a-0", top, begin=2), at=3)
    queued = custom(
        "Workload", "kueue.x-k8s.io/v1beta1", "w", top,
        spec={"queueName": "team"}, status={"conditions": [condition("Evicted", reason=reason)]},
    )  # fmt: skip
    held = {**top, "spec": {**top["spec"], "suspend": True}}
    scene.show(queued, held, at=9)
    events = scene.show(pod("a-0", top, begin=2), at=9, is_gone=True)
    ends = [event for event in events if event["kind"] == "job_finished"]
    assert [(end["fields"]["outcome"], end["fields"]["goes_on"]) for end in ends] == [
        (outcome, True)
    ]
    assert [event["kind"] for event in events][-1] == "job_requeued"


@pytest.mark.parametrize(
    ("exit_code", "outcome", "cause", "then"),
    [(1, "failed", "exit", "job_requeued"), (0, "succeeded", "success", "resources_allocated")],
)
def test_pods_decide_when_the_last_work_has_ended_where_the_object_stays_silent(
    scene: Scene, exit_code: int, outcome: str, cause: str, then: str
) -> None:
    top = custom("PyTorchJob", "kubeflow.org/v1", status={"conditions": [condition("Restarting")]})
    ended = pod("a-0", top, begin=2, end=7, exit_code=exit_code)
    kinds = [event["kind"] for event in scene.show(top, ended, at=9)]
    assert kinds[-1] == "resources_released"
    [end] = scene.new_events(70)
    fields = end["fields"]
    assert (end["kind"], fields["outcome"], fields["cause"]) == ("job_finished", outcome, cause)
    assert end["time"] == NOW + 7 - 0.001
    assert "object was not updated" in fields["reason"]
    again = scene.show(pod("a-1", top, created=80, begin=82), at=83)
    assert then in {event["kind"] for event in again}


DONE = {"status": {"conditions": [condition("Succeeded", 300.0)]}}
GATE = {"name": "proxy", "state": {"running": {"startedAt": moment(2)}}, "restartCount": 0}
# What is there at 1,000 s of a job's object and pod: outcome, GPU-seconds, and those after the end.
AFTER_THE_END: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str | None, float, float]]] = {
    "a pod that runs on": (DONE, {}, ("succeeded", 1996, 1400)),
    "a container without GPUs that runs on": (
        {}, {"end": 300, "sidecar": GATE}, ("succeeded", 1996, 1400),
    ),
    "a pod that is over": (DONE, {"end": 300}, ("succeeded", 596, 0)),
    "a pod that is deleted": ({}, {"end": 300, "exit_code": 143, "is_deleted": True},
                              ("cancelled", 596, 0)),
    "a pod whose node forgot its containers": (
        {}, {"phase": "Failed", "reason": "Evicted", "startTime": moment(2),
             "containerStatuses": [], "conditions": [condition("Ready", 300.0, "False")]},
        (None, 596, 0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AFTER_THE_END)
def test_gpus_that_are_held_after_the_end_of_the_work_are_waste(scene: Scene, name: str) -> None:
    parts, words, expected = AFTER_THE_END[name]
    top = custom("PyTorchJob", "kubeflow.org/v1", **parts)
    is_deleted, sidecar = words.get("is_deleted"), words.get("sidecar")
    status = {key: each for key, each in words.items() if key not in {"is_deleted", "sidecar"}}
    document = pod("a-0", top, begin=2, **status)
    document["spec"]["restartPolicy"] = "Never"
    if is_deleted:
        document["metadata"]["deletionTimestamp"] = moment(290)
    if sidecar is not None:
        document["spec"]["containers"].append(container(0, "proxy"))
        document["status"] |= {"phase": "Running"}
        document["status"]["containerStatuses"].append(sidecar)
    events = scene.show(top, document, at=1000)
    story = Story(job_id="team-a/a", now=NOW + 1000, events=[dict(each) for each in events])
    job = Replay(story).job
    held = job.goodput.get("held_after_end", 0.0)
    assert (job.outcome, round(job.gpu_seconds), round(held)) == expected
    assert any("held_by" in event["fields"] for event in events) == (held > 0)
