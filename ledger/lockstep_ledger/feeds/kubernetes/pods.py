"""Pods: whose each is, its accelerators, when its containers ran, how these ended."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from lockstep_ledger.feeds.kubernetes import objects
from lockstep_ledger.feeds.kubernetes.objects import (
    PODS,
    Document,
    Ending,
    Owned,
    conditions_of,
    count_accelerators,
    count_of,
    list_of,
    part_of,
    seconds_of,
    text_of,
)
from lockstep_outcomes.classify import Classification, classify
from lockstep_outcomes.evidence import Evidence, RankEnd
from lockstep_outcomes.rules import SCHEDULER_SIGNS
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
        user: user id as which the containers that hold accelerators run, where the pod says so.
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
    """What is kept of a pod, with the runs seen before; ObjectError where it has no identity."""
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


_QUEUE_WORDS = {"Preempted": "PreemptionByKueue", "NodeFailures": "NodeLost"}
_MAX_PODS, _MAX_NAME = 64, 100
_RANKS = re.compile(r" on ranks? [\d, ]*\d(?:, \.\.\.)?")
_ONE_RANK = re.compile(r"Ranks? [\d, .]+ was")


def judge_attempt(runs: Sequence[PodRun], pods: dict[str, Pod], word: str = "") -> dict[str, Any]:
    """Fields of the end of an attempt before another; ``word`` is of who took its pods."""
    if word in _QUEUE_WORDS:
        return _fields(classify(Evidence(scheduler=(_QUEUE_WORDS[word],))), word)
    found = _judge_pods(runs, pods)
    if found is not None and not word:
        return _fields(found, "")
    return _fields(classify(Evidence(scheduler=("Deleted",))), word or "Its pods were taken away.")


def judge_job(
    ending: Ending, runs: Sequence[PodRun], pods: dict[str, Pod], *, has_run: bool
) -> dict[str, Any]:
    """Fields of the end of a job."""
    word = ending.word
    if word in {"Completed", "Deleted"}:
        return _fields(classify(Evidence(scheduler=(word,))), ending.message)
    if word == "Unseen":
        return _fields(classify(Evidence()), ending.message)
    if not has_run:
        return _fields(_judge_waiting(word, pods.values()), ending.message)
    sign = SCHEDULER_SIGNS.get(word, "")
    if sign in {"time_limit", "preempted", "cancelled"}:
        return _fields(classify(Evidence(scheduler=(word,))), ending.message)
    found = _judge_pods(runs, pods)
    if found is None:
        found = classify(Evidence(scheduler=(word if sign else "Failed",)))
    bad = [pods[run.pod].name for run in _bad(runs) if run.pod in pods] if len(runs) > 1 else []
    names = (f"Pod {printable(name, _MAX_NAME)} failed first." for name in bad[:1])
    return _fields(found, " ".join((*names, ending.message)))


def find_ending(top: Owned | None, kind: str, pods: Sequence[Pod]) -> Ending | None:
    """The end of a job by its object; by its pods where its object cannot be seen."""
    if top is not None:
        is_deleted = top.ending is None and top.gone is not None
        reason = "Its object was deleted before it had ended."
        return Ending("Deleted", top.gone, reason) if is_deleted else top.ending
    stated = pods[0].ending if pods and kind == PODS.name else None
    left = [pod.gone for pod in pods if pod.gone is not None]
    if stated is not None or not pods or len(left) < len(pods):
        return stated
    if any(run.fate == "unseen" for pod in pods for run in pod.runs.values()):
        return unseen(max(left))
    has_succeeded = {pod.phase for pod in pods if not pod.is_deleted} == {"Succeeded"}
    return Ending("Completed" if has_succeeded else "Deleted", max(left))


def unseen(time: float) -> Ending:
    """The end of a job that left the server while nobody looked."""
    moment = datetime.fromtimestamp(time, UTC).isoformat(timespec="seconds")
    return Ending("Unseen", time, f"It was last seen at {moment}.")


def _judge_waiting(word: str, pods: Iterable[Pod]) -> Classification:
    waiting = list(pods)
    reasons = [pod.waiting for pod in waiting if pod.waiting in SCHEDULER_SIGNS]
    if reasons:
        return classify(Evidence(scheduler=(reasons[0],)))
    if any(pod.is_unschedulable for pod in waiting):
        return classify(Evidence(reported=("launch_system",)))
    return classify(Evidence(scheduler=(word if word in SCHEDULER_SIGNS else "Failed",)))


def _bad(runs: Sequence[PodRun]) -> list[PodRun]:
    bad = (run for run in runs if run.fate in {"failed", "disrupted"} and run.end is not None)
    return sorted(bad, key=lambda run: (run.end or 0.0, run.part))


def _judge_pods(runs: Sequence[PodRun], pods: dict[str, Pod]) -> Classification | None:
    bad = _bad(runs)
    if not bad:
        return None
    first, pod = bad[0], pods.get(bad[0].pod)
    word = _word_of(first, pod)
    if word:
        return classify(Evidence(scheduler=(word,), outside_time=first.end))
    ranks = tuple(
        RankEnd(
            rank=index, node=run.node or None, exit_code=run.exit_code, first=index == 0,
            last_lines=run.message, time=run.end,
        )
        for index, run in enumerate(bad[:_MAX_PODS])
    )  # fmt: skip
    return classify(Evidence(ranks=ranks, world_size=len(runs)))


def _word_of(run: PodRun, pod: Pod | None) -> str:
    reasons = (
        pod.reason if pod is not None and pod.reason in DISRUPTIONS else "",
        pod.disruption if pod is not None else "",
        run.reason if run.reason not in {"Error", "Completed"} else "",
    )
    return next((reason for reason in reasons if reason in SCHEDULER_SIGNS), "")


def _fields(found: Classification, message: str) -> dict[str, Any]:
    fields = found.event_fields()
    # Ranks are the job's own count, and the pods of an evidence are numbered as they ended.
    reason = _RANKS.sub("", fields["reason"]).replace("Ranks were", "Pods were")
    fields["reason"] = f"{_ONE_RANK.sub('A pod was', reason)} {message}".strip()
    fields["cause_ranks"] = []
    fields.pop("followers", None)
    return fields
