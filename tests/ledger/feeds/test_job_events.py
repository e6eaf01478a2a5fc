"""Objects and pods become events: by hand, without a server."""

from typing import Any

import pytest

from lockstep_ledger.feeds.kubernetes.cluster_state import ClusterState
from lockstep_ledger.feeds.kubernetes.follower import Change
from lockstep_ledger.feeds.kubernetes.job_events import EventWriter
from lockstep_ledger.feeds.kubernetes.objects import PODS, Kind

from .objects import NOW, container, job, meta, moment, pod

JOBS = Kind("batch", "v1", "Job", "jobs")
Events = list[dict[str, Any]]


def kind_of(item: dict[str, Any]) -> Kind:
    """The kind of an object, as discovery tells it."""
    if item["kind"] == "Pod":
        return PODS
    group, _, version = item.get("apiVersion", "batch/v1").rpartition("/")
    return Kind(group, version, item["kind"], f"{item['kind'].lower()}s")


class Scene:
    """A state that is given objects, and the events that it makes."""

    def __init__(self) -> None:
        self.state, self.writer = ClusterState({}), EventWriter("east")

    def show(self, *items: dict[str, Any], at: float = 0.0, is_gone: bool = False) -> Events:
        """Apply objects at a time; the events that are new."""
        for item in items:
            word: Any = "gone" if is_gone else "seen"
            self.state.apply(Change(kind_of(item), "", word, NOW + at, item))
        return self.new_events(at)

    def new_events(self, at: float) -> Events:
        found: Events = []
        for each in self.state.collect(NOW + at, lambda _: False):
            each.job_id = each.job_id or f"{each.namespace}/{each.name}"
            found += self.writer.new_events(each, NOW + at)
        return found


@pytest.fixture(name="scene")
def _scene() -> Scene:
    return Scene()


def times_of(events: Events) -> list[tuple[str, float]]:
    """Kind and time of each, in seconds after NOW."""
    return [(event["kind"], round(event["time"] - NOW, 3)) for event in events]


def test_gpu_time_is_that_of_each_pod(scene: Scene) -> None:
    top = job("a")
    events = scene.show(top, pod("a-0", top, begin=2, end=5), pod("a-1", top, begin=3, end=9), at=9)
    assert times_of(events) == [
        ("job_submitted", 0), ("job_started", 2),
        ("resources_allocated", 2), ("resources_released", 5),
        ("resources_allocated", 3), ("resources_released", 9),
    ]  # fmt: skip
    assert [e["fields"]["num_gpus"] for e in events if e["kind"] == "resources_allocated"] == [2, 2]


def test_the_same_again_has_no_new_event_and_another_feed_has_the_same_ids(scene: Scene) -> None:
    top = job("a")
    items = (top, pod("a-0", top, begin=2))
    first = scene.show(*items, at=3)
    assert scene.show(*items, at=4) == []
    assert [event["id"] for event in Scene().show(*items, at=60)] == [
        event["id"] for event in first
    ]


def test_what_runs_is_said_once_a_day(scene: Scene) -> None:
    top, day = job("a"), 86_400.0
    scene.show(top, pod("a-0", top, begin=2), at=3)
    found = [times_of(scene.new_events(at)) for at in (4, day + 4, day + 5, 2 * day + 4)]
    assert found == [[], [("job_submitted", day + 4)], [], [("job_submitted", 2 * day + 4)]]


def test_a_failed_pod_that_is_replaced_is_a_requeue_with_its_cause(scene: Scene) -> None:
    top = job("a")
    scene.show(top, pod("a-0", top, begin=2), at=3)
    failed = pod("a-0", top, begin=2, end=8, exit_code=139)
    assert times_of(scene.show(failed, at=8)) == [("resources_released", 8)]
    events = scene.show(pod("a-1", top, created=9, begin=12), at=12)
    kinds = ["job_finished", "job_requeued", "job_started", "resources_allocated"]
    assert [event["kind"] for event in events if event["kind"] != "job_submitted"] == kinds
    assert events[0]["fields"]["cause"] == "segfault"
    assert (events[0]["time"], events[0]["fields"]["goes_on"]) == (NOW + 8 - 0.001, True)


def test_growth_and_success_one_after_the_other_are_no_attempts(scene: Scene) -> None:
    top = job("a")
    pods = [pod(f"a-{i}", top, created=9 * i, begin=10 * i, end=10 * i + 4) for i in range(3)]
    events = scene.show(top, *pods, pod("a-9", top, created=22, begin=22), at=30)
    assert sum(event["kind"] == "job_started" for event in events) == 1


def test_restarts_of_a_container_that_nobody_saw_are_attempts(scene: Scene) -> None:
    top = job("a")
    only = pod("a-0", top, begin=50, restarts=3, last=(30, 40, 1))
    events = scene.show(top, only, at=60)
    assert sum(event["kind"] == "job_started" for event in events) == 4
    held = [e for e in events if e["kind"] in {"resources_allocated", "resources_released"}]
    assert {round(event["time"] - NOW, 3) for event in held} == {29.998, 29.999, 30, 40, 50}


def test_restarts_that_an_operator_counts_and_nobody_saw_are_attempts(scene: Scene) -> None:
    top = job("a", restarts=2)
    events = scene.show(top, pod("a-0", top, begin=50), at=60)
    assert sum(event["kind"] == "job_started" for event in events) == 3
    assert times_of(scene.show(job("a", restarts=3), at=70)) == []  # its next start will be seen


def test_a_deleted_job_is_cancelled_when_it_was_deleted(scene: Scene) -> None:
    top = job("a")
    scene.show(top, pod("a-0", top, begin=2), at=3)
    events = scene.show(top, at=20, is_gone=True)
    assert times_of(events) == [("job_finished", 19.999)]
    assert events[0]["fields"]["outcome"] == "cancelled"


def test_what_is_submitted_again_in_the_second_of_a_deletion_outlives_it(scene: Scene) -> None:
    """Deletions are seen at a time of their own, begins have whole seconds."""
    first = job("a")
    scene.show(first, pod("a-0", first, begin=2), at=3)
    ended = scene.show(first, at=20.7, is_gone=True)
    again = job("a", created=20)
    again["metadata"]["uid"] = "uid-again"
    begun = scene.show(again, pod("b-0", again, created=20, begin=20), at=21)
    [start] = [event for event in begun if event["kind"] == "job_started"]
    assert ended[-1]["time"] < start["time"]


def test_what_left_while_nobody_looked_is_unknown_and_ends_when_it_was_last_seen(
    scene: Scene,
) -> None:
    top = job("a")
    scene.show(top, pod("a-0", top, begin=2), at=3)
    for kind in (PODS, JOBS):
        change = Change(kind, "", "listed", NOW + 90, uids=frozenset(), seen_until=NOW + 30)
        scene.state.apply(change)
    events = scene.new_events(90)
    assert times_of(events) == [("resources_released", 30), ("job_finished", 29.999)]
    assert events[1]["fields"]["outcome"] == "unknown"


def test_a_job_has_the_names_by_which_its_pods_know_it(scene: Scene) -> None:
    """A launcher in a pod of a TrainJob knows the JobSet, for the uid of that is a label."""
    top = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": meta("a")}
    inner = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta("s", 0, top),
    }  # fmt: skip
    parts = [job(f"s-{index}") | {"metadata": meta(f"s-{index}", 0, inner)} for index in range(3)]
    first = scene.show(top, *parts, pod("s-0-0", parts[0], begin=1), at=1)
    assert first == []  # the JobSet may come yet
    events = scene.show(inner, at=2)
    assert [event["kind"] for event in events][:2] == ["job_submitted", "job_started"]
    names = [event["fields"]["aliases"] for event in events if "aliases" in event["fields"]]
    assert names == [["kubernetes:uid-a", "kubernetes:uid-s"]] * 2
    assert len(scene.state.jobs) == 1


def test_the_size_of_a_job_that_ran_while_nobody_looked_is_told_with_its_end(scene: Scene) -> None:
    scene.show(job("a"))
    done = [{"type": "Complete", "status": "True", "lastTransitionTime": moment(9)}]
    top = job("a", conditions=done)
    events = scene.show(top, *(pod(f"a-{i}", top, begin=2, end=8) for i in range(2)), at=20)
    [described] = [event for event in events if event["kind"] == "job_submitted"]
    assert described["fields"]["num_gpus"] == 4
    assert described["time"] < events[-1]["time"]


def test_the_size_of_a_job_whose_pods_are_cleaned_up_is_not_told_anew(scene: Scene) -> None:
    done = [{"type": "Complete", "status": "True", "lastTransitionTime": moment(9)}]
    top = job("a", conditions=done)
    scene.show(top, *(pod(f"a-{i}", top, begin=2, end=8) for i in range(2)), at=20)
    again = Scene()
    again.state.apply(Change(JOBS, "", "seen", NOW + 60, top))
    again.state.apply(Change(PODS, "", "seen", NOW + 60, pod("a-0", top, begin=2, end=8)))
    [restored] = again.state.collect(NOW + 60, lambda _: False)
    before = scene.state.jobs[restored.uid]
    restored.job_id, restored.sent = before.job_id, {f"submit {before.job_id}"}
    restored.runs = {run.part: run for run in before.all_runs()}
    kinds = {event["kind"] for event in again.writer.new_events(restored, NOW + 60)}
    assert "job_submitted" not in kinds


def test_a_name_that_comes_late_is_told(scene: Scene) -> None:
    top = job("a") | {"kind": "TrainJob", "apiVersion": "trainer.kubeflow.org/v1alpha1"}
    [submitted] = scene.show(top)
    assert submitted["fields"]["aliases"] == ["kubernetes:uid-a"]
    inner = job("b") | {"metadata": meta("b", 0, top)}
    [described] = scene.show(inner, at=1)
    assert described["kind"] == "job_submitted"
    assert described["fields"]["aliases"] == ["kubernetes:uid-a", "kubernetes:uid-b"]


def test_what_a_queue_holds_waits_from_its_submission_and_what_its_owner_holds_does_not(
    scene: Scene,
) -> None:
    held = job("held") | {"spec": {**job("held")["spec"], "suspend": True}}
    queued = job("queued") | {"spec": {**job("queued")["spec"], "suspend": True}}
    queued["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    assert times_of(scene.show(held, queued, at=1)) == [("job_submitted", 0)]
    resumed = {"type": "Suspended", "status": "False", "lastTransitionTime": moment(30)}
    assert times_of(scene.show(job("held", conditions=[resumed]), at=31)) == [("job_submitted", 30)]


def test_what_asks_for_nothing_is_left_out_once(scene: Scene) -> None:
    top = job("etl")
    top["spec"]["template"]["spec"]["containers"] = [container(0)]
    pods = [pod(f"etl-{index}", top, gpus=0, begin=1) for index in range(4)]
    assert scene.show(top, *pods, at=2) == []
    assert scene.show(*pods, at=3) == []
    assert scene.state.left_out == 1


BROKEN: tuple[dict[str, Any], ...] = (
    {"metadata": None},
    {"metadata": {"name": "x"}},
    {"metadata": {"name": 1, "uid": [], "creationTimestamp": "yesterday"}},
    {"metadata": meta("x") | {"creationTimestamp": None}},
)
STRANGE: tuple[dict[str, Any], ...] = (
    {"metadata": meta("x"), "spec": [], "status": "done"},
    {
        "metadata": meta("x") | {"labels": [], "ownerReferences": {"uid": 1}},
        "spec": {"containers": 7},
    },
    {"metadata": meta("x"), "status": {"conditions": [1, {"type": [], "status": "True"}]}},
    {
        "metadata": meta("x"),
        "status": {"containerStatuses": [{"state": 1, "restartCount": "many"}]},
    },
    {"metadata": meta("x"), "status": {"state": {"phase": {}}, "restarts": -1, "failed": 10**30}},
)


@pytest.mark.parametrize("kind", ["Pod", "Job"])
def test_objects_that_no_controller_would_write_hurt_no_other(
    scene: Scene, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    for item in BROKEN:
        scene.show(item | {"kind": kind})
        scene.show(item | {"kind": kind})
    assert scene.state.refused == len(caplog.records) > 0
    assert all("left out" in record.getMessage() for record in caplog.records)
    for item in STRANGE:
        scene.show(item | {"kind": kind})
    top = job("a")
    assert scene.show(top, pod("a-0", top, begin=2), at=3)
