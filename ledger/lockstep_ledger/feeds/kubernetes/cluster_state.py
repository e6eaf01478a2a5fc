"""Objects and pods of the server, grouped into jobs by their top owner."""

import logging
import threading
from collections.abc import Callable, Mapping

from lockstep_ledger.feeds.kubernetes import objects
from lockstep_ledger.feeds.kubernetes.follower import Change
from lockstep_ledger.feeds.kubernetes.job_events import SILENT_SECONDS, Job
from lockstep_ledger.feeds.kubernetes.pods import Pod, close_runs, find_ending, read_pod, unseen
from lockstep_ledger.importers.scheduler_events import REPEAT_SECONDS

_log = logging.getLogger(__name__)
_ORPHAN_SECONDS, _RACE_SECONDS = 3.0, 1.0
_KEPT_SECONDS = 600.0
_MOST_OWNERS = 8
_MOST_PARTS = 8  # a job has at most 20 names in the ledger
_MOST_LOGGED = 100
Await = Callable[[objects.Reference], bool]
"""Whether an owner that is not there may still come: its kind is not listed yet."""


class ClusterState:
    """The state of the server, as far as it is needed.

    Args:
        selector: of the jobs that are taken: values by label; of None it only has to be there.

    Attributes:
        jobs: by uid of the object, or of the pod without an owner.
        dirty: uids of what changed since it was evaluated.
    """

    def __init__(self, selector: Mapping[str, str | None]) -> None:
        self.jobs: dict[str, Job] = {}
        self.dirty: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self.lock = threading.RLock()
        self.refused = 0
        self._selector = selector
        self._objects: dict[str, objects.Owned] = {}
        self._pods: dict[str, Pod] = {}
        self._job_of_pod: dict[str, str] = {}
        self._claims: dict[tuple[str, str], objects.Owned] = {}
        self.left_out = 0
        self._broken: set[str] = set()

    def apply(self, change: Change) -> None:
        """Take a change of an object or a list."""
        with self.lock:
            if change.word == "listed":
                self._forget_missing(change)
                return
            try:
                self._apply(change)
            except objects.ObjectError as error:
                uid = objects.text_of(objects.part_of(change.item, "metadata").get("uid"))
                if uid not in self._broken and len(self._broken) < _MOST_LOGGED:
                    self._broken.add(uid)
                    self.refused += 1
                    _log.warning("object=unreadable reason=%r", str(error))

    def _apply(self, change: Change) -> None:
        is_gone = change.word == "gone"
        if change.kind is objects.PODS:
            pod = read_pod(
                change.item,
                self._pods.get(
                    objects.text_of(objects.part_of(change.item, "metadata").get("uid"))
                ),
            )
            if is_gone:
                pod.gone = change.time
                close_runs(pod, change.time)
            self._pods[pod.uid] = pod
            job = self.jobs.get(self._job_of_pod.get(pod.uid, ""))
            if job is not None:
                job.pods[pod.uid] = pod
            self.dirty.setdefault(pod.uid, change.time)
            return
        found = objects.read_object(change.kind, change.item)
        before = self._objects.get(found.uid)
        if before is not None and found.resumed is None:
            # As the server would write it: in whole seconds.
            seen = float(int(change.time))
            found.resumed = seen if before.held and not found.held else before.resumed
        found.gone = change.time if is_gone else None
        self._objects[found.uid] = found
        if found.kind == objects.CLAIMS:
            self._claims[found.namespace, found.name] = found
        self.dirty.setdefault(found.uid, change.time)

    def _forget_missing(self, change: Change) -> None:
        of_kind: list[Pod | objects.Owned] = (
            [*self._pods.values()]
            if change.kind is objects.PODS
            else [each for each in self._objects.values() if each.kind == change.kind.name]
        )
        for each in of_kind:
            is_seen = change.namespace in {"", each.namespace}
            if each.uid in change.uids or each.gone is not None or not is_seen:
                continue
            each.gone = change.time
            if isinstance(each, Pod):
                close_runs(each, change.seen_until, "unseen")
            elif each.ending is None:
                each.ending = unseen(change.seen_until)
            self.dirty.setdefault(each.uid, change.time)

    def collect(self, now: float, may_come: Await) -> list[Job]:
        """The jobs that changed, each with its pods and the newest state of its object."""
        with self.lock:
            waiting, self.dirty = self.dirty, {}
            changed: dict[str, Job] = {}
            for uid, since in waiting.items():
                job = self._find_job(uid, since, now, may_come)
                if isinstance(job, float):
                    self.dirty[uid] = job
                elif job is not None:
                    changed[job.uid] = job
            due = [uid for uid, time in self._due.items() if time <= now]
            changed |= {uid: self.jobs[uid] for uid in due if uid in self.jobs}
            for job in changed.values():
                self._update(job)
                wake = self._due.pop(job.uid, now)
                if job.stopped is not None and now < job.stopped + SILENT_SECONDS:
                    self._due[job.uid] = job.stopped + SILENT_SECONDS
                elif (job.ending or job.stopped) and not all(p.is_over for p in job.pods.values()):
                    self._due[job.uid] = now + SILENT_SECONDS
                elif job.newest_begin is not None:
                    self._due[job.uid] = wake if wake > now else now + REPEAT_SECONDS
            return [job for job in changed.values() if self._is_taken(job)]

    def _find_job(self, uid: str, since: float, now: float, may_come: Await) -> Job | float | None:
        """The job of an object or pod; since when it is waited for where its owner may come yet."""
        pod, owned = self._pods.get(uid), self._objects.get(uid)
        if owned is not None and owned.kind == objects.CLAIMS:
            for user in self._pods.values():
                if user.namespace == owned.namespace and owned.name in user.claims:
                    self.dirty.setdefault(user.uid, since)
            return None
        top, missing = self._climb(pod, owned)
        if missing is not None and not self._is_cut(pod, missing, now - since, may_come):
            return since
        if owned is not None and top is not None and top.kind in objects.PARTS:
            return None
        job = self._job(pod, top, missing)
        if job is not None and pod is not None:
            self._join(pod, job)
        if job is not None and owned is not None and owned.parent is not None:
            if owned.kind == objects.WORKLOADS:
                job.workload = owned
            elif owned.kind in objects.KNOWN_TO_PODS and owned.parent.kind != "JobSet":
                job.parts |= {owned.uid} if len(job.parts) < _MOST_PARTS else set()
        return job

    def _climb(
        self, pod: Pod | None, owned: objects.Owned | None
    ) -> tuple[objects.Owned | None, objects.Reference | None]:
        """The object at the top of the owners; else the owner that is not there."""
        top, child = owned, pod if pod is not None else owned
        parent = child.parent if child is not None else None
        for _ in range(_MOST_OWNERS):
            if parent is None or parent.kind in objects.SUBMITTERS:
                break
            top = self._objects.get(parent.uid)
            if top is None:
                return None, parent
            parent = top.parent
        return top, None

    def _is_cut(
        self, pod: Pod | None, owner: objects.Reference, waited: float, may_come: Await
    ) -> bool:
        """Whether an owner that is not there will not come; none is looked for what is left out."""
        if pod is not None and not (pod.gpus or pod.job_id or pod.claims):
            return waited >= _RACE_SECONDS
        return not may_come(owner) and waited >= _ORPHAN_SECONDS

    def _job(
        self, pod: Pod | None, top: objects.Owned | None, missing: objects.Reference | None
    ) -> Job | None:
        """The job whose object is on top, or whose owner cannot be seen, or that is a pod."""
        if top is not None:
            job = Job(top.uid, top.namespace, top.name, top.kind, top.created, top)
        elif missing is not None and pod is not None:
            job = Job(
                missing.uid,
                pod.namespace,
                missing.name,
                f"{missing.kind.lower()}s.{missing.group}",
                pod.created,
            )
        elif pod is not None:
            job = Job(pod.uid, pod.namespace, pod.name, objects.PODS.name, pod.created)
        else:
            return None
        return self.jobs.setdefault(job.uid, job)

    def _join(self, pod: Pod, job: Job) -> None:
        before = self._job_of_pod.get(pod.uid)
        if before not in {None, job.uid} and before in self.jobs:
            self.jobs[before].pods.pop(pod.uid, None)
        self._job_of_pod[pod.uid] = job.uid
        job.pods[pod.uid] = pod

    def _update(self, job: Job) -> None:
        job.top = self._objects.get(job.uid, job.top)
        for pod in job.pods.values():
            claimed = sum(
                claim.claimed
                for name in set(pod.claims)
                if (claim := self._claims.get((pod.namespace, name))) is not None
            )
            if claimed:
                pod.gpus = claimed
                for run in pod.runs.values():
                    run.gpus = claimed
        if job.ending is None or job.ending.word == "Unseen":
            job.ending = find_ending(job.top, job.kind, list(job.pods.values())) or job.ending

    def _is_taken(self, job: Job) -> bool:
        """Whether it asks for accelerators or opts in; what does neither is counted, once."""
        top, pods = job.top, job.pods.values()
        labels = dict(top.labels) if top else next((pod.labels for pod in pods), {})
        is_wanted = any(pod.gpus or pod.job_id for pod in pods) or (
            top is not None and (top.asks or bool(top.job_id))
        )
        if not job.is_taken and is_wanted and self._admits(labels):
            job.is_taken = True
        if not job.is_taken and not job.is_left_out and (job.pods or job.ending is not None):
            job.is_left_out = True
            self.left_out += 1
        return job.is_taken

    def _admits(self, labels: dict[str, str]) -> bool:
        return all(
            labels.get(name) == value if value is not None else name in labels
            for name, value in self._selector.items()
        )

    def purge(self, now: float) -> None:
        """Forget what has left the server a while ago."""
        with self.lock:
            for uid, pod in list(self._pods.items()):
                job = self.jobs.get(self._job_of_pod.get(uid, ""))
                is_free = job is None or not job.is_taken or job.is_finished
                if pod.gone is not None and now - pod.gone > _KEPT_SECONDS and is_free:
                    del self._pods[uid]
                    self._job_of_pod.pop(uid, None)
                    if job is not None:
                        job.pods.pop(uid, None)
            used = {pod.parent.uid for pod in self._pods.values() if pod.parent}
            used |= {o.parent.uid for o in self._objects.values() if o.parent and o.gone is None}
            for uid, owned in list(self._objects.items()):
                if owned.gone is not None and now - owned.gone > _KEPT_SECONDS and uid not in used:
                    del self._objects[uid]
            for uid, job in list(self.jobs.items()):
                if (
                    uid not in self._objects
                    and not job.pods
                    and (job.is_finished or not job.is_taken)
                ):
                    del self.jobs[uid]

    def has_object(self, uid: str) -> bool:
        """Whether an object or a pod of it is there."""
        with self.lock:
            owned, job = self._objects.get(uid), self.jobs.get(uid)
            if owned is not None and owned.gone is None:
                return True
            return job is not None and any(pod.gone is None for pod in job.pods.values())
