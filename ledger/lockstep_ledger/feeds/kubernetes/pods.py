"""Pods: whose each is, its accelerators, when its containers ran, how these ended."""

from dataclasses import dataclass, field
from typing import Any, Literal

from lockstep_ledger.feeds.kubernetes import objects
from lockstep_ledger.feeds.kubernetes.fields import (
    Document,
    conditions_of,
    count_accelerators,
    count_of,
    list_of,
    part_of,
    seconds_of,
    text_of,
)
from lockstep_records.text.printable import printable

Fate = Literal["", "succeeded", "failed", "disrupted", "taken", "unseen"]
"""How a run of a pod's containers ended: taken away by whoever owns it, or while nobody looked."""
DISRUPTIONS = frozenset({"Evicted", "NodeLost", "NodeShutdown", "Terminated", "Preempting"})
"""Reasons of pods that their node gave up."""
_MAX_MESSAGE, _MAX_USER = 500, 2**32 - 1


@dataclass(slots=True)
class PodRun:
    """Time in which containers of a pod ran.

    Attributes:
        part: name of it in the ledger.
        end: None while they run.
        host: name of the machine as the pod's containers see it.
        restart: number of restarts of the pod's containers before it.
    """

    part: str
    pod: str
    begin: float
    created: float
    gpus: int = 0
    node: str = ""
    end: float | None = None
    fate: Fate = ""
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    restart: int = 0
    host: str = ""


@dataclass(slots=True)
class Pod:
    """A pod.

    Attributes:
        phase: Pending, Running, Succeeded or Failed.
        waiting: why its containers do not start.
        user: user id as which the containers that hold accelerators run, where the pod says so.
        runs: by begin.
        idle_since, idle_until: from the end of its work, while other containers run on; both None
            of one whose work goes on, and the second while they do.
        keepers: names of these.
    """

    uid: str
    namespace: str
    name: str
    parent: objects.Reference | None
    job_id: str
    created: float
    gpus: int
    job_class: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    node: str = ""
    host: str = ""
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    disruption: str = ""
    waiting: str = ""
    is_unschedulable: bool = False
    is_deleted: bool = False
    claims: tuple[str, ...] = ()
    user: int | None = None
    restarts: int = 0
    runs: dict[float, PodRun] = field(default_factory=dict)
    gone: float | None = None
    idle_since: float | None = None
    idle_until: float | None = None
    keepers: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether its containers run no more."""
        return self.gone is not None or self.phase in {"Succeeded", "Failed"}

    @property
    def ending(self) -> objects.Ending | None:
        """The end of a pod that is a job by itself."""
        if self.phase not in {"Succeeded", "Failed"}:
            return None
        time = max((run.end for run in self.runs.values() if run.end is not None), default=None)
        return objects.Ending(
            "Completed" if self.phase == "Succeeded" else "Failed", time, self.message
        )


def read_pod(item: Any, before: Pod | None = None) -> Pod:
    """What is kept of a pod, with the runs that were seen before.

    Raises:
        ObjectError: it has no identity.
    """
    meta, uid, namespace, name, created = objects.read_identity(item, "pods")
    spec, status = part_of(item, "spec"), part_of(item, "status")
    parent = objects.parent_of(meta)
    pod = Pod(
        uid, namespace, name, parent, objects.job_id_of(meta), created, _count_gpus(spec),
        job_class=text_of(spec.get("priorityClassName")),
        labels={} if parent else {str(k): str(v) for k, v in part_of(meta, "labels").items()},
        node=text_of(spec.get("nodeName")),
        host=text_of(spec.get("hostname")) or name,
        phase=text_of(status.get("phase")) or "Pending",
        reason=text_of(status.get("reason")),
        message=printable(text_of(status.get("message")), _MAX_MESSAGE),
        is_deleted=bool(meta.get("deletionTimestamp")),
        claims=_read_claims(spec, status),
        user=_read_user(spec),
        runs=before.runs if before else {},
    )  # fmt: skip
    for condition, is_true, document in conditions_of(status):
        reason = text_of(document.get("reason"))
        if condition == "DisruptionTarget" and is_true:
            pod.disruption = reason
        elif condition == "PodScheduled":
            pod.is_unschedulable = not is_true and reason == "Unschedulable"
    _read_runs(pod, spec, status)
    return pod


def fill_restarts(pod: Pod) -> None:
    """Add runs without duration for restarts that nobody saw, just before the next that is seen."""
    seen = {run.restart: run for run in pod.runs.values()}
    for number in set(range(pod.restarts)) - set(seen):
        later = min((r for n, r in seen.items() if n > number), key=lambda r: r.begin, default=None)
        if later is not None:
            begin = later.begin - 0.001 * (later.restart - number)
            pod.runs[begin] = PodRun(
                f"{pod.uid}/#{number}", pod.uid, begin, pod.created, pod.gpus, pod.node, begin,
                "failed", restart=number,
            )  # fmt: skip


def close_runs(pod: Pod, time: float, fate: Fate = "taken") -> None:
    """End what runs still, as of a time: the pod has left the server, or nobody sees it."""
    for run in pod.runs.values():
        if run.end is None:
            run.end, run.fate = max(time, run.begin), "disrupted" if pod.disruption else fate


def _count_gpus(spec: Document) -> int:
    """Accelerators that a pod holds: of all its containers, or of the greediest before them."""
    at_once = [count_accelerators(part_of(c, "resources")) for c in list_of(spec.get("containers"))]
    before = [
        count_accelerators(part_of(c, "resources")) for c in list_of(spec.get("initContainers"))
    ]
    return max([sum(at_once), *before])


def _read_claims(spec: Document, status: Document) -> tuple[str, ...]:
    stated = (*list_of(spec.get("resourceClaims")), *list_of(status.get("resourceClaimStatuses")))
    named = (text_of(each.get("resourceClaimName")) for each in stated)
    return tuple(filter(None, named))


def _read_user(spec: Document) -> int | None:
    names, of_pod = _main_containers(spec), part_of(spec, "securityContext").get("runAsUser")
    users = {
        part_of(each, "securityContext").get("runAsUser", of_pod)
        for each in list_of(spec.get("containers"))
        if text_of(each.get("name")) in names
    }
    [user] = users if len(users) == 1 else [None]
    return user if isinstance(user, int) and 0 <= user < _MAX_USER else None


def _main_containers(spec: Document) -> set[str]:
    """Names of the containers that hold accelerators; of all where none does."""
    containers = list_of(spec.get("containers"))
    holding = {
        text_of(c.get("name")) for c in containers if count_accelerators(part_of(c, "resources"))
    }
    return holding or {text_of(c.get("name")) for c in containers}


def _read_runs(pod: Pod, spec: Document, status: Document) -> None:
    """Add what the containers ran to the runs of the pod."""
    names = _main_containers(spec)
    spans: list[tuple[float, float | None, int, Document]] = []
    for each in list_of(status.get("containerStatuses")):
        if text_of(each.get("name")) not in names:
            continue
        restarts = count_of(each.get("restartCount"))
        pod.restarts = max(pod.restarts, restarts)
        waiting = part_of(each, "state", "waiting")
        pod.waiting = pod.waiting or text_of(waiting.get("reason"))
        for where in ("lastState", "state"):
            for state in ("running", "terminated"):
                found = part_of(each, where, state)
                begin, end = seconds_of(found.get("startedAt")), seconds_of(found.get("finishedAt"))
                if begin is not None:
                    number = restarts - (where == "lastState")
                    spans.append((begin, end if state == "terminated" else None, number, found))
    _read_idle(pod, spec, status, names)
    began = seconds_of(status.get("startTime"))
    if not spans and began is not None and pod.phase == "Failed" and pod.reason in DISRUPTIONS:
        spans.append((began, None, 0, {}))  # a node that gives a pod up forgets its containers
    # What runs comes last: a run lasts as long as any of its containers does.
    for begin, end, number, document in sorted(spans, key=lambda span: (span[1] is None, span[0])):
        _add_run(pod, begin, end, number, document)
    if pod.phase in {"Succeeded", "Failed"}:
        # A kubelet that is lost writes no ends: whoever judged the pod wrote conditions.
        times = [seconds_of(c.get("lastTransitionTime")) for c in list_of(status.get("conditions"))]
        close_runs(pod, max((time for time in times if time), default=pod.created), "failed")
    if pod.restarts > 1:
        fill_restarts(pod)


def _read_idle(pod: Pod, spec: Document, status: Document, names: set[str]) -> None:
    """Note from when on containers without accelerators alone keep a pod, and its accelerators."""
    ends: dict[bool, list[float | None]] = {True: [], False: []}
    for each in list_of(status.get("containerStatuses")):
        name, end = text_of(each.get("name")), part_of(each, "state", "terminated")
        ends[name in names].append(seconds_of(end.get("finishedAt")))
        if name not in names and not end:
            pod.keepers += (name,)
    own, others = ([end for end in ends[side] if end is not None] for side in (True, False))
    if own and len(own) == len(names) and spec.get("restartPolicy") in {"Never", "OnFailure"}:
        pod.idle_since = max(own)
        is_closed = len(others) == len(ends[False]) or pod.phase in {"Succeeded", "Failed"}
        pod.idle_until = max([*own, *others]) if is_closed else None


def _add_run(pod: Pod, begin: float, end: float | None, number: int, document: Document) -> None:
    earlier = (r for r in pod.runs.values() if r.begin <= begin)
    run = next((r for r in earlier if r.begin == begin or r.end is None or begin < r.end), None)
    if run is None:
        run = PodRun(f"{pod.uid}/{begin:.0f}", pod.uid, begin, pod.created, restart=max(0, number))
        pod.runs[begin] = run
    run.gpus, run.node, run.host = pod.gpus, pod.node, pod.host
    if end is None:
        run.end, run.fate = None, ""
        return
    run.end = max(end, run.begin, run.end or 0.0)
    code = document.get("exitCode")
    run.exit_code = code if isinstance(code, int) and not isinstance(code, bool) else None
    run.reason = text_of(document.get("reason"))
    run.message = printable(text_of(document.get("message")), _MAX_MESSAGE)
    run.fate = _judge_fate(pod, run)


def _judge_fate(pod: Pod, run: PodRun) -> Fate:
    if pod.disruption or pod.reason in DISRUPTIONS:
        return "disrupted"
    if run.exit_code == 0:
        return "succeeded"
    return "taken" if pod.is_deleted else "failed"
