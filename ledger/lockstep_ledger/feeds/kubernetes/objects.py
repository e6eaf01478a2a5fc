"""Objects that own pods, and their kinds, which the server's discovery tells."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lockstep_ledger.feeds.kubernetes.server import ApiServer
from lockstep_records.text.printable import printable

Document = Mapping[str, Any]
_MAX_DIGITS = 9
_CLAIMED = re.compile(r"gpu|mig|tpu|neuron|gaudi|accelerator", re.IGNORECASE)
_ACCELERATOR = re.compile(
    r"nvidia\.com/(gpu|mig-).*|amd\.com/(gpu|cpx|spx|dpx|qpx).*|gpu\.intel\.com/(i915|xe)"
    r"|habana\.ai/gaudi|google\.com/tpu|aws\.amazon\.com/neuron.*|huawei\.com/Ascend.*"
    r"|[^/]+/gpu"
)
"""Resources that are accelerators, of all vendors."""


def part_of(document: Any, *path: str) -> Document:
    """A part of a document; empty where it is missing or no object."""
    part = document
    for name in path:
        part = part.get(name) if isinstance(part, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def list_of(value: Any) -> list[Document]:
    """The objects of a list; empty where it is none."""
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """A text; empty where it is none."""
    return value if isinstance(value, str) else ""


def count_of(value: Any, default: int = 0) -> int:
    """A count, which may be a text; the default where it is none."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else default


def seconds_of(moment: Any) -> float | None:
    """Seconds since 1970 of a time of the server; None where it is none."""
    try:
        time = datetime.fromisoformat(moment)
    except (TypeError, ValueError):
        return None
    seconds = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    return seconds if seconds >= 0 else None


def count_accelerators(resources: Document) -> int:
    """Accelerators of a container's limits, or of its requests where it has none."""
    amounts = part_of(resources, "limits") or part_of(resources, "requests")
    return sum(count_of(n) for name, n in amounts.items() if _ACCELERATOR.fullmatch(str(name)))


def asks_in_template(spec: Any, depth: int = 12) -> bool:
    """Whether any template of pods inside a spec, of whatever kind, asks for accelerators."""
    if isinstance(spec, list):
        return depth > 0 and any(asks_in_template(each, depth - 1) for each in spec)
    if not isinstance(spec, Mapping) or depth <= 0:
        return False
    return count_accelerators(spec) > 0 or any(
        asks_in_template(each, depth - 1)
        for each in spec.values()
        if isinstance(each, Mapping | list)
    )


def count_claimed(claim: Document) -> int:
    """Accelerators that a resource claim was allocated, or asks for."""
    results = list_of(part_of(claim, "status", "allocation", "devices").get("results"))
    if results:
        return sum(bool(_CLAIMED.search(text_of(each.get("driver")))) for each in results)
    total = 0
    for request in list_of(part_of(claim, "spec", "devices").get("requests")):
        exactly = part_of(request, "exactly") or request
        if _CLAIMED.search(text_of(exactly.get("deviceClassName"))):
            total += count_of(exactly.get("count"), 1)
    return total


def conditions_of(status: Document) -> Iterator[tuple[str, bool, Document]]:
    """Type of each condition, whether it is true, and the condition."""
    for each in list_of(status.get("conditions")):
        yield text_of(each.get("type")), each.get("status") == "True", each


_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
FOLLOWED = frozenset({
    "jobs.batch", "jobsets.jobset.x-k8s.io", "trainjobs.trainer.kubeflow.org",
    "pytorchjobs.kubeflow.org", "tfjobs.kubeflow.org", "xgboostjobs.kubeflow.org",
    "paddlejobs.kubeflow.org", "jaxjobs.kubeflow.org", "mpijobs.kubeflow.org",
    "rayjobs.ray.io", "rayclusters.ray.io", "jobs.batch.volcano.sh",
    "leaderworkersets.leaderworkerset.x-k8s.io", "workloads.kueue.x-k8s.io",
    "resourceclaims.resource.k8s.io",
})  # fmt: skip
"""Kinds that are followed as soon as the server has them; any other once it owns pods with GPUs."""
WORKLOADS, CLAIMS = "workloads.kueue.x-k8s.io", "resourceclaims.resource.k8s.io"
PARTS = frozenset({WORKLOADS, CLAIMS})
"""Kinds that are never jobs themselves."""
KNOWN_TO_PODS = frozenset({"jobsets.jobset.x-k8s.io", "jobs.batch"})
"""Kinds whose uid is a label of their pods: a launcher knows its job by the outermost of them."""
SUBMITTERS = frozenset({"CronJob", "CronWorkflow", "ScheduledWorkflow", "Node"})
"""Kinds that own several jobs, or only hold pods: what they own is a job by itself."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of objects."""

    group: str
    version: str
    kind: str
    plural: str

    @property
    def name(self) -> str:
        """Plural and group, as RBAC and CRDs name it."""
        return f"{self.plural}.{self.group}".rstrip(".")

    def path(self, namespace: str = "") -> str:
        """Path of its list."""
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return (
            f"{base}/namespaces/{namespace}/{self.plural}" if namespace else f"{base}/{self.plural}"
        )


PODS = Kind("", "v1", "Pod", "pods")


def discover(server: ApiServer) -> dict[str, Kind]:
    """The namespaced kinds that can be watched, by name, in preferred versions; or ServerError."""
    found: dict[str, Kind] = {}
    for group in list_of(part_of(server.send("GET", "/apis", accept=_DISCOVERY)).get("items")):
        name = text_of(part_of(group, "metadata").get("name"))
        for version in reversed(list_of(group.get("versions"))):
            for each in list_of(version.get("resources")):
                kind = _read(name, text_of(version.get("version")), each)
                if kind is not None:
                    found[kind.name] = kind
    return found


def _read(group: str, version: str, resource: Any) -> Kind | None:
    verbs = resource.get("verbs")
    plural, kind = text_of(resource.get("resource")), part_of(resource, "responseKind").get("kind")
    is_followable = isinstance(verbs, list) and {"list", "watch"} <= set(map(str, verbs))
    if resource.get("scope") != "Namespaced" or not is_followable or not plural:
        return None
    return Kind(group, version, text_of(kind), plural)


JOB_ID_LABEL = "lockstep/job-id"
"""Label or annotation with the id by which ``lockstep run`` knows the job, where that differs."""
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
_SUCCEEDED = frozenset({"Complete", "Completed", "Succeeded", "SUCCEEDED"})
_FAILED = frozenset({"Failed", "FAILED"})
_STOPPED = frozenset({"STOPPED", "Aborted", "Terminated"})
_MAX_MESSAGE = 500


@dataclass(frozen=True, slots=True)
class Reference:
    """The object that controls another."""

    uid: str
    group: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Ending:
    """An end in an object's word: Completed, Failed, Deleted or a reason; its time if stated."""

    word: str
    time: float | None
    message: str = ""


@dataclass(slots=True)
class Owned:
    """An object that owns pods, or tells of one that does.

    Attributes:
        kind: name of its kind, as RBAC has it.
        resumed: when it was resumed for the last time, where stated.
        evicted: why a queue took it out, and when.
        asks: whether a template of pods in it asks for accelerators.
        claimed: accelerators, of a resource claim.
    """

    uid: str
    kind: str
    namespace: str
    name: str
    parent: Reference | None
    labels: Mapping[str, str]
    job_id: str
    created: float
    queue: str = ""
    job_class: str = ""
    time_limit: float | None = None
    held: bool = False
    resumed: float | None = None
    evicted: Ending | None = None
    restarts: int = 0
    asks: bool = False
    claimed: int = 0
    ending: Ending | None = None
    gone: float | None = None


class ObjectError(ValueError):
    """An object that no controller would write; the text names it."""


def parent_of(meta: Document) -> Reference | None:
    """The controller among the owners of an object, else its only owner."""
    owners = list_of(meta.get("ownerReferences"))
    chosen = next((each for each in owners if each.get("controller") is True), None)
    chosen = chosen or (owners[0] if len(owners) == 1 else None)
    if chosen is None or not text_of(chosen.get("uid")):
        return None
    group = text_of(chosen.get("apiVersion")).rpartition("/")[0]
    return Reference(
        text_of(chosen["uid"]), group, text_of(chosen.get("kind")), text_of(chosen.get("name"))
    )


def read_identity(item: Any, kind: str) -> tuple[Document, str, str, str, float]:
    """Metadata of an object, uid, namespace, name, and time of creation; or ObjectError."""
    meta = part_of(item, "metadata")
    uid, namespace, name = (text_of(meta.get(each)) for each in ("uid", "namespace", "name"))
    created = seconds_of(meta.get("creationTimestamp"))
    if not uid or not name or created is None:
        where = printable(f"{namespace}/{name}", 300)
        raise ObjectError(f"{kind} {where} has no uid, name or time of creation; it is left out")
    return meta, uid, namespace, name, created


def job_id_of(meta: Document) -> str:
    """The id that label or annotation give; empty where there is none."""
    for part in ("labels", "annotations"):
        if label := text_of(part_of(meta, part).get(JOB_ID_LABEL)):
            return label
    return ""


def read_object(kind: Kind, item: Any) -> Owned:
    """What is kept of an object; ObjectError where it has no identity."""
    meta, uid, namespace, name, created = read_identity(item, kind.name)
    spec, status = part_of(item, "spec"), part_of(item, "status")
    policy = part_of(spec, "runPolicy")
    limit = spec.get("activeDeadlineSeconds") or policy.get("activeDeadlineSeconds")
    labels = {str(key): str(value) for key, value in part_of(meta, "labels").items()}
    found = Owned(
        uid, kind.name, namespace, name, parent_of(meta), labels, job_id_of(meta),
        created,
        queue=labels.get(_QUEUE_LABEL, "") or text_of(spec.get("queue")),
        job_class=labels.get(_PRIORITY_LABEL, "") or text_of(spec.get("priorityClassName")),
        time_limit=count_of(limit) or None,
        held=spec.get("suspend") is True or policy.get("suspend") is True,
        restarts=_count_restarts(status),
        asks=kind.name not in {WORKLOADS, CLAIMS} and asks_in_template(spec),
        ending=_read_ending(status),
    )  # fmt: skip
    for name, is_true, condition in conditions_of(status):
        time = seconds_of(condition.get("lastTransitionTime"))
        if name == "Suspended" and not is_true:
            found.resumed = time
        elif name == "Evicted" and is_true:
            found.evicted = Ending(text_of(condition.get("reason")), time)
    if kind.name == WORKLOADS:
        found.queue = text_of(spec.get("queueName"))
    elif kind.name == CLAIMS:
        found.claimed = count_claimed(item)
    return found


def _count_restarts(status: Document) -> int:
    return count_of(status.get("restarts")) or count_of(status.get("failed")) * (
        "jobDeploymentStatus" in status
    )


def _read_ending(status: Document) -> Ending | None:
    for name, is_true, condition in conditions_of(status):
        if is_true and name in _SUCCEEDED | _FAILED:
            moment = status.get("completionTime") or condition.get("lastTransitionTime")
            reason = (
                "Completed" if name in _SUCCEEDED else text_of(condition.get("reason")) or "Failed"
            )
            message = printable(text_of(condition.get("message")), _MAX_MESSAGE)
            return Ending(reason, seconds_of(moment), message)
    state = status.get("state")
    phases = (
        text_of(status.get("jobDeploymentStatus")), text_of(part_of(state).get("phase")),
        text_of(status.get("phase")),
    )  # fmt: skip
    word = next((each for each in phases if each in _SUCCEEDED | _FAILED | _STOPPED), "")
    if not word:
        return None
    word = text_of(status.get("jobStatus")) or word
    time = seconds_of(status.get("endTime")) or seconds_of(part_of(state).get("lastTransitionTime"))
    message = printable(text_of(status.get("message")), _MAX_MESSAGE)
    if word in _SUCCEEDED:
        return Ending("Completed", time)
    return Ending("Deleted" if word in _STOPPED else "Failed", time, message)
