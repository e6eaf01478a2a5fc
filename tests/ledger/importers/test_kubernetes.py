"""Kubernetes' objects that are jobs become events, read by a watch of an API server."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest

from lockstep_ledger.importers.kubernetes import KIND_BY_NAME, KINDS, ObjectReader
from lockstep_ledger.importers.kubernetes_watch import ApiServer, KubernetesWatch
from lockstep_records.event_check import check_event
from lockstep_records.events import Event

NOW = 1_900_000_000.0
POD = {"containers": [{"name": "t", "resources": {"limits": {"nvidia.com/gpu": 8, "cpu": "4"}}}]}
Document = dict[str, Any]


def at(minute: int) -> str:
    return f"2026-01-01T00:{minute:02}:00Z"


def condition(kind: str, minute: int, reason: str = "", status: str = "True") -> Document:
    return {
        "type": kind, "status": status, "reason": reason or kind, "message": f"because of {reason}",
        "lastTransitionTime": at(minute),
    }  # fmt: skip


SPECS: dict[str, Document] = {
    "Job": {"parallelism": 4, "template": {"spec": POD}, "activeDeadlineSeconds": 600},
    "PyTorchJob": {
        "pytorchReplicaSpecs": {
            "Master": {"replicas": 1, "template": {"spec": POD}},
            "Worker": {"replicas": 3, "template": {"spec": POD}},
        },
        "runPolicy": {"activeDeadlineSeconds": 600},
    },
    "TrainJob": {
        "runtimeRef": {"name": "torch"},
        "trainer": {"numNodes": 4, "resourcesPerNode": {"limits": {"nvidia.com/gpu": "8"}}},
    },
    "JobSet": {
        "replicatedJobs": [
            {
                "name": "w", "replicas": 2,
                "template": {"spec": {"parallelism": 2, "template": {"spec": POD}}},
            }
        ]
    },
}  # fmt: skip


def job(kind: str, *conditions: Document, uid: str = "12345678-aaaa", **parts: Any) -> Document:
    status: Document = {"conditions": list(conditions)} | parts.pop("status", {})
    if kind in {"Job", "PyTorchJob"} and not parts.get("waits"):
        status.setdefault("startTime", at(1))
    parts.pop("waits", None)
    meta = {
        "name": "train", "namespace": "llm", "uid": uid, "creationTimestamp": at(0),
        "labels": {"kueue.x-k8s.io/queue-name": "h100"}, "resourceVersion": "7",
    }  # fmt: skip
    spec = SPECS[kind] | parts.pop("spec", {})
    return {"kind": kind, "metadata": meta | parts, "spec": spec, "status": status}


def read(*versions: Document) -> list[Event]:
    """Events of the versions of objects in turn, each once."""
    reader = ObjectReader("east")
    found: dict[str, Event] = {}
    for document in versions:
        for event in reader.events(document, NOW):
            assert check_event(event.document(), now_seconds=NOW) == event
            found.setdefault(event.id, event)
    return list(found.values())


@pytest.mark.parametrize("kind", SPECS)
def test_a_job_of_each_kind_says_who_it_is_and_how_many_gpus_it_has(kind: str) -> None:
    submitted, started, ended = read(
        job(kind), job(kind, condition("Complete", 9, "JobsCompleted"))
    )
    assert (submitted.kind, started.kind, ended.kind) == (
        "job_submitted", "job_started", "job_finished",
    )  # fmt: skip
    assert {"num_nodes": 4, "num_gpus": 32, "queue": "h100", "project": "llm"}.items() <= (
        started.fields.items()
    )
    assert started.job_id == "llm/train@12345678"
    assert (ended.fields["outcome"], ended.time - submitted.time) == ("succeeded", 540)
    assert (started.node, started.cluster) == ("", "east")


@pytest.mark.parametrize(
    ("ended", "outcome", "cause"),
    [
        (condition("Failed", 5, "BackoffLimitExceeded"), "failed", "exit"),
        (condition("Failed", 5, "DeadlineExceeded"), "time_limit", "time_limit"),
        (condition("Failed", 5, "PyTorchJobFailed"), "failed", "exit"),
        (condition("Failed", 5, "ReachedMaxRestarts"), "failed", "exit"),
        (condition("Succeeded", 5, "PyTorchJobSucceeded"), "succeeded", "success"),
        (condition("Completed", 5, "AllJobsCompleted"), "succeeded", "success"),
    ],
)
def test_the_last_condition_is_judged_by_the_outcome_table(
    ended: Document, outcome: str, cause: str
) -> None:
    [end] = [event for event in read(job("PyTorchJob", ended)) if event.kind == "job_finished"]
    assert (end.fields["outcome"], end.fields["cause"]) == (outcome, cause)


def test_a_suspended_job_waits_and_one_that_ran_before_was_preempted() -> None:
    waiting = job("Job", condition("Suspended", 0, "JobSuspended"), waits=True)
    running = job("Job", condition("Suspended", 2, "JobResumed", "False"))
    stopped = job("Job", condition("Suspended", 8, "JobSuspended"), waits=True)
    again = job("Job", status={"startTime": at(20)})
    kinds = [event.kind for event in read(waiting, running, running, stopped, stopped, again)]
    assert kinds == [
        "job_submitted", "job_started", "job_preempted", "job_requeued", "job_started",
    ]  # fmt: skip


def test_a_deleted_job_was_cancelled_unless_it_had_ended() -> None:
    reader = ObjectReader()
    [end] = reader.deleted(job("JobSet"), NOW)
    assert (end.fields["outcome"], end.time) == ("cancelled", NOW)
    assert list(reader.deleted(job("JobSet", condition("Completed", 5)), NOW)) == []
    assert list(reader.deleted({"kind": "Pod"}, NOW)) == []


def test_the_job_of_a_job_set_is_a_part_of_it_and_no_job_of_its_own() -> None:
    owned = job("Job", ownerReferences=[{"kind": "JobSet", "name": "train"}])
    assert read(owned) == []


def test_restarts_in_place_are_attempts_and_a_label_names_the_job() -> None:
    events = read(job("JobSet", status={"restarts": 2}, labels={"lockstep/job-id": "mine"}))
    assert [(e.kind, e.attempt) for e in events][-1] == ("attempt_started", 2)
    assert {event.job_id for event in events} == {"mine"}


@pytest.mark.parametrize("part", ["metadata", "spec", "status"])
@pytest.mark.parametrize("value", [None, 7, [], "text", {"conditions": 5, "labels": [], "uid": 1}])
def test_an_object_of_any_shape_harms_nobody(part: str, value: Any) -> None:
    for kind in SPECS:
        for event in ObjectReader().events(job(kind) | {part: value}, NOW):
            check_event(event.document(), now_seconds=NOW)


class _Api(BaseHTTPRequestHandler):
    server: "ApiServerDouble"

    def do_GET(self) -> None:
        url = urlparse(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.server.requests.append((url.path, query, self.headers.get("Authorization", "")))
        if self.server.location:
            self.send_response(302)
            self.send_header("Location", self.server.location)
            self.end_headers()
        elif url.path != "/apis/batch/v1/jobs":
            self._answer(404, b"{}")
        elif "watch" not in query:
            self._answer(200, json.dumps(self.server.lists.pop(0)).encode())
        elif not self.server.watches:
            time.sleep(0.05)
            self._answer(503, b"overloaded")
        else:
            lines = self.server.watches.pop(0)
            status = 410 if lines == "gone" else 200
            body = b"" if lines == "gone" else "".join(json.dumps(x) + "\n" for x in lines).encode()
            self._answer(status, body)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name it overrides
        pass


class ApiServerDouble(ThreadingHTTPServer):
    """An API server that answers what a test has laid down."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Api)
        self.lists: list[Document] = []
        self.watches: list[Any] = []
        self.location = ""
        self.requests: list[tuple[str, dict[str, str], str]] = []


@pytest.fixture(name="api")
def _api() -> Iterator[ApiServerDouble]:
    with ApiServerDouble() as api:
        thread = threading.Thread(target=api.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield api
        api.shutdown()
        thread.join()


def watch(api: ApiServerDouble, tmp_path: Path, kind: str = "Job") -> KubernetesWatch:
    token = tmp_path / "token"
    token.write_text("secret\n")
    server = ApiServer(url=f"http://127.0.0.1:{api.server_port}", token_file=token, ca_file=None)
    waits: list[float] = []
    return KubernetesWatch(
        server, server.client(), KIND_BY_NAME[kind], ObjectReader(), clock=lambda: NOW,
        sleep=waits.append,
    )  # fmt: skip


def test_a_watch_lists_follows_and_begins_anew_where_its_version_is_gone(
    api: ApiServerDouble, tmp_path: Path
) -> None:
    item = job("Job")
    del item["kind"]
    other = job("Job", uid="99999999-bbbb", name="other")
    api.lists = [
        {"metadata": {"resourceVersion": "10", "continue": "next"}, "items": [item]},
        {"metadata": {"resourceVersion": "10"}, "items": []},
        {"metadata": {"resourceVersion": "30"}, "items": [job("Job", condition("Complete", 9))]},
    ]
    api.watches = [
        [
            {"type": "ADDED", "object": other},
            {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "20"}}},
        ],
        [{"type": "ERROR", "object": {"code": 410, "message": "too old"}}],
        "gone",
    ]
    api.lists.append({"metadata": {"resourceVersion": "40"}, "items": []})
    api.watches.append([{"type": "DELETED", "object": other}])
    kinds = [(event.kind, event.job_id) for event in islice(watch(api, tmp_path).follow(), 8)]
    first, second = "llm/train@12345678", "llm/other@99999999"
    assert kinds == [
        ("job_submitted", first), ("job_started", first), ("job_submitted", second),
        ("job_started", second), ("job_submitted", first), ("job_started", first),
        ("job_finished", first), ("job_finished", second),
    ]  # fmt: skip
    watched = [query["resourceVersion"] for _, query, _ in api.requests if "watch" in query]
    assert watched == ["10", "20", "30", "40"]
    assert {token for _, _, token in api.requests} == {"Bearer secret"}
    assert api.requests[1][1]["continue"] == "next"


def test_a_kind_that_the_cluster_does_not_know_ends_its_watch(
    api: ApiServerDouble, tmp_path: Path
) -> None:
    assert list(watch(api, tmp_path, "JobSet").follow()) == []


def test_an_overloaded_server_is_asked_again(api: ApiServerDouble, tmp_path: Path) -> None:
    api.lists = [{"metadata": {"resourceVersion": "10"}, "items": []}]
    events = watch(api, tmp_path).follow()
    taken: list[Event] = []
    reading = threading.Thread(target=lambda: taken.extend(islice(events, 2)), daemon=True)
    reading.start()
    deadline = time.monotonic() + 30
    while len(api.requests) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    api.watches = [[{"type": "ADDED", "object": job("Job")}]]
    reading.join(30)
    assert [event.kind for event in taken] == ["job_submitted", "job_started"]


def test_the_token_of_the_pod_does_not_follow_a_redirect(
    api: ApiServerDouble, tmp_path: Path
) -> None:
    api.location = "/elsewhere"
    with pytest.raises(ValueError, match="the API server answers 302"):
        list(watch(api, tmp_path).follow())
    assert [path for path, _, _ in api.requests] == ["/apis/batch/v1/jobs"]


def test_outside_of_a_pod_the_missing_account_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="token is missing; run in a pod"):
        ApiServer(token_file=tmp_path / "token").client()
    assert len(KINDS) == len(KIND_BY_NAME)
