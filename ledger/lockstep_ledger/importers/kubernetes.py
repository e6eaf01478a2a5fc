"""Kubernetes' objects that are jobs: Job, PyTorchJob, TrainJob and JobSet become events.

Each version of an object is read by itself; its events have ids that follow from the object, so
that a watch that begins anew tells nothing twice.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lockstep_ledger.importers.scheduler_events import JobEvents
from lockstep_records.events.event import Event
from lockstep_records.outcomes.classify import classify
from lockstep_records.outcomes.evidence import Evidence
from lockstep_records.outcomes.signs import SCHEDULER_SIGNS

Document = Mapping[str, Any]
JOB_ID_LABEL = "lockstep/job-id"
"""Label or annotation with the id by which ``lockstep run`` knows the job, where that differs."""
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
_SUCCEEDED = ("Complete", "Completed", "Succeeded")
_FAILED = ("Failed",)
_MAX_ID, _MAX_DIGITS = 200, 9


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """A kind of object that is a job.

    Attributes:
        path: of its list in the API, for all namespaces.
        pods: of a spec, number of pods and the template of each group of them.
    """

    kind: str
    path: str
    pods: Callable[[Document], Iterator[tuple[int, Document]]]


def _read_job_pods(spec: Document) -> Iterator[tuple[int, Document]]:
    yield _integer(spec.get("parallelism"), 1), _part(spec, "template", "spec")


def _read_pytorch_job_pods(spec: Document) -> Iterator[tuple[int, Document]]:
    for replica in _part(spec, "pytorchReplicaSpecs").values():
        if isinstance(replica, Mapping):
            yield _integer(replica.get("replicas"), 1), _part(replica, "template", "spec")


def _read_job_set_pods(spec: Document) -> Iterator[tuple[int, Document]]:
    groups = spec.get("replicatedJobs")
    for group in groups if isinstance(groups, list) else ():
        if isinstance(group, Mapping):
            for count, template in _read_job_pods(_part(group, "template", "spec")):
                yield count * _integer(group.get("replicas"), 1), template


def _read_train_job_pods(spec: Document) -> Iterator[tuple[int, Document]]:
    trainer = _part(spec, "trainer")
    resources = {"containers": [{"resources": _part(trainer, "resourcesPerNode")}]}
    yield _integer(trainer.get("numNodes"), 1), resources


KINDS = (
    ObjectKind("Job", "/apis/batch/v1/jobs", _read_job_pods),
    ObjectKind("PyTorchJob", "/apis/kubeflow.org/v1/pytorchjobs", _read_pytorch_job_pods),
    ObjectKind("TrainJob", "/apis/trainer.kubeflow.org/v1alpha1/trainjobs", _read_train_job_pods),
    ObjectKind("JobSet", "/apis/jobset.x-k8s.io/v1alpha2/jobsets", _read_job_set_pods),
)
KIND_BY_NAME = {kind.kind: kind for kind in KINDS}
_OWNERS = frozenset({"PyTorchJob", "TrainJob", "JobSet"})


class ObjectReader:
    """Reads objects as a watch delivers them.

    Args:
        cluster: of the jobs; None where the caller names it for all.
    """

    def __init__(self, cluster: str | None = None) -> None:
        self._cluster = cluster
        # Whether a suspended object had run before cannot be seen in it.
        self._running: set[str] = set()

    def events(self, document: Document, observed_seconds: float) -> Iterator[Event]:
        """Events of an object; none when it is not a job, or is a part of one.

        Args:
            document: the object.
            observed_seconds: when it was seen, for what it gives no time.
        """
        kind = KIND_BY_NAME.get(str(document.get("kind")))
        if kind is None or _is_owned(document):
            return
        meta, status = _part(document, "metadata"), _part(document, "status")
        events, described = self._job(document), _described(kind, document)
        created = _seconds(meta.get("creationTimestamp"), observed_seconds)
        yield events.event("job_submitted", created, "submit", described)
        conditions = _conditions(status)
        restarts = _integer(status.get("restarts"), 0)
        start = _start(document, conditions, created)
        uid = str(meta.get("uid"))
        if start is not None:
            self._running.add(uid)
            yield events.event("job_started", start, start, described)
        if restarts:
            reason = {"restart_count": restarts}
            yield events.event("attempt_started", observed_seconds, restarts, reason, restarts)
        suspended = conditions.get("Suspended")
        if suspended is not None and uid in self._running and start is None:
            self._running.discard(uid)
            moment = _seconds(suspended.get("lastTransitionTime"), observed_seconds)
            why = {"reason": str(suspended.get("reason", "Suspended"))}
            for name in ("job_preempted", "job_requeued"):
                yield events.event(name, moment, moment, why, restarts)
        yield from self._end(events, conditions, status, observed_seconds, restarts)

    def deleted(self, document: Document, observed_seconds: float) -> Iterator[Event]:
        """The end of an object that was deleted before it had ended; it was cancelled."""
        if str(document.get("kind")) not in KIND_BY_NAME or _is_owned(document):
            return
        conditions = _conditions(_part(document, "status"))
        self._running.discard(str(_part(document, "metadata").get("uid")))
        if any(name in conditions for name in (*_SUCCEEDED, *_FAILED)):
            return
        judged = classify(Evidence(scheduler=("Deleted",))).event_fields()
        judged["reason"] = "Its object was deleted before it had ended."
        yield self._job(document).event("job_finished", observed_seconds, "end", judged)

    def _end(
        self,
        events: JobEvents,
        conditions: dict[str, Document],
        status: Document,
        observed_seconds: float,
        restarts: int,
    ) -> Iterator[Event]:
        name = next((n for n in (*_SUCCEEDED, *_FAILED) if n in conditions), None)
        if name is None:
            return
        condition = conditions[name]
        reason = str(condition.get("reason", ""))
        word = reason if reason in SCHEDULER_SIGNS and name in _FAILED else name
        word = "Completed" if name in _SUCCEEDED else word
        judged = classify(Evidence(scheduler=(word,))).event_fields()
        message = condition.get("message")
        if name in _FAILED and isinstance(message, str) and message:
            judged["reason"] = f"{judged['reason']} {message[:500]}".strip()
        moment = status.get("completionTime") or condition.get("lastTransitionTime")
        ended = _seconds(moment, observed_seconds)
        yield events.event("job_finished", ended, "end", judged, restarts)

    def _job(self, document: Document) -> JobEvents:
        return JobEvents(source="kubernetes", job_id=job_id_of(document), cluster=self._cluster)


def job_id_of(document: Document) -> str:
    """The id of a job: the label, or namespace, name and the begin of the uid.

    A name can be used again once its object is deleted; the uid cannot.
    """
    meta = _part(document, "metadata")
    for part in ("labels", "annotations"):
        label = _part(meta, part).get(JOB_ID_LABEL)
        if isinstance(label, str) and label:
            return label[:_MAX_ID]
    name = f"{meta.get('namespace', 'default')}/{meta.get('name', 'unnamed')}"
    return f"{name[: _MAX_ID - 9]}@{str(meta.get('uid', ''))[:8]}"


def _described(kind: ObjectKind, document: Document) -> dict[str, Any]:
    meta, spec = _part(document, "metadata"), _part(document, "spec")
    labels = _part(meta, "labels")
    groups = list(kind.pods(spec))
    gpus = sum(count * _gpus_of(template) for count, template in groups)
    priorities = [template.get("priorityClassName") for _, template in groups]
    limit = spec.get("activeDeadlineSeconds")
    limit = limit or _part(spec, "runPolicy").get("activeDeadlineSeconds")
    return {
        "name": str(meta.get("name", "")),
        "project": meta.get("namespace"),
        "queue": labels.get(_QUEUE_LABEL),
        "job_class": labels.get(_PRIORITY_LABEL) or next(filter(None, priorities), None),
        "num_nodes": sum(count for count, _ in groups),
        "num_gpus": gpus or None,
        "time_limit_seconds": limit if isinstance(limit, int) else None,
        "source": "kubernetes",
    }


def _start(document: Document, conditions: dict[str, Document], created: float) -> float | None:
    """When its pods were started; None while it waits or is suspended."""
    status, spec = _part(document, "status"), _part(document, "spec")
    suspended = "Suspended" in conditions or spec.get("suspend") is True
    if suspended or _part(spec, "runPolicy").get("suspend") is True:
        return None
    if status.get("startTime"):
        return _seconds(status["startTime"], created)
    resumed = next(
        (c for c in _list(status.get("conditions")) if c.get("type") == "Suspended"), None
    )
    if resumed is not None:  # it is False by now
        return _seconds(resumed.get("lastTransitionTime"), created)
    # JobSet and TrainJob have no time of their start, and start at once unless they are suspended.
    return created if str(document.get("kind")) in {"JobSet", "TrainJob"} and status else None


def _is_owned(document: Document) -> bool:
    """Whether it is a part of another job, such as the Job that a JobSet creates."""
    owners = _list(_part(document, "metadata").get("ownerReferences"))
    return any(owner.get("kind") in _OWNERS for owner in owners)


def _conditions(status: Document) -> dict[str, Document]:
    """The conditions that hold, by type."""
    return {
        str(condition.get("type")): condition
        for condition in _list(status.get("conditions"))
        if condition.get("status") == "True"
    }


def _gpus_of(template: Document) -> int:
    """GPUs of one pod."""
    total = 0
    for container in _list(template.get("containers")):
        resources = _part(container, "resources")
        limits = _part(resources, "limits") or _part(resources, "requests")
        total += sum(
            _integer(amount, 0) for name, amount in limits.items() if name.endswith("/gpu")
        )
    return total


def _part(document: Document, *path: str) -> Document:
    """A part of a document; empty where it is missing or no object."""
    part: Any = document
    for name in path:
        part = part.get(name) if isinstance(part, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def _list(value: Any) -> list[Document]:
    return (
        [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
    )


def _integer(value: Any, default: int) -> int:
    """A count of an object, which may be a text; the default where it is none."""
    text = str(value)
    return int(text) if text.isdigit() and len(text) <= _MAX_DIGITS else default


def _seconds(moment: Any, default: float) -> float:
    try:
        time = datetime.fromisoformat(str(moment))
    except ValueError:
        return default
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
