"""The feed: follows what there is, tells the ledger what is new, and ends there what is gone."""

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from itertools import count
from types import MappingProxyType
from typing import Any

from lockstep_ledger.feeds.kubernetes import delivery
from lockstep_ledger.feeds.kubernetes.cluster_state import ClusterState
from lockstep_ledger.feeds.kubernetes.follower import Follower
from lockstep_ledger.feeds.kubernetes.job_events import EventWriter, Job
from lockstep_ledger.feeds.kubernetes.objects import (
    FOLLOWED,
    PODS,
    Kind,
    Reference,
    discover,
    part_of,
    seconds_of,
    text_of,
)
from lockstep_ledger.feeds.kubernetes.pods import unseen
from lockstep_ledger.feeds.kubernetes.server import ApiServer, Failure, ServerError
from lockstep_records.text.printable import printable

RENEW_SECONDS = 2.0
_LEASE_SECONDS = 10
_ANNOTATION = "lockstep/delivered-until"
_PATH = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"


class Lease:
    """A Lease, and until when the holder before this one has delivered everything.

    A feed that comes back under the same ``identity`` goes on at once.
    """

    def __init__(self, server: ApiServer, namespace: str, name: str, identity: str) -> None:
        self.delivered_until: float | None = None
        self._server, self._identity, self._name = server, identity, name
        self._path = _PATH.format(namespace)
        self._is_usable, self._was_held, self._complaint = True, False, ""
        self._seen: tuple[str, float] = ("", 0.0)

    def hold(self, delivered_until: float | None) -> bool:
        """Take it or renew it; whether this feed holds it.

        While the server does not answer, its holder stays what it was: nobody else can take it.
        """
        try:
            held = self._hold(delivered_until) if self._is_usable else True
        except ServerError as error:
            if error.status == HTTPStatus.FORBIDDEN:
                _log.warning("lease=forbidden reason=%r", printable(str(error), 300))
                self._is_usable = False  # one feed works without it
                return True
            if error.status == HTTPStatus.CONFLICT:
                return False  # another feed was quicker
            return self._complain(error)
        except Failure as error:
            return self._complain(error)
        self._was_held, self._complaint = held, ""
        return held

    def _complain(self, error: Exception) -> bool:
        """Log that the server does not answer, once until it does; who holds it stays the same."""
        if not self._complaint:
            self._complaint = printable(str(error), 300)
            _log.warning("kubernetes=away reason=%r", self._complaint)
        return self._was_held

    def release(self, delivered_until: float) -> None:
        """Let another feed take it at once."""
        if self._was_held and self._is_usable:
            try:
                self._write(
                    self._server.send("GET", f"{self._path}/{self._name}"), "", delivered_until
                )
            except (ServerError, *Failure):
                _log.info("lease=kept")

    def _hold(self, delivered_until: float | None) -> bool:
        try:
            lease = self._server.send("GET", f"{self._path}/{self._name}")
        except ServerError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            lease = {"metadata": {"name": self._name}}
        holder = text_of(part_of(lease, "spec").get("holderIdentity"))
        if holder not in {"", self._identity} and self._is_fresh(lease):
            return False
        if not self._was_held:
            stated = text_of(part_of(lease, "metadata", "annotations").get(_ANNOTATION))
            self.delivered_until = seconds_of(stated)
        self._write(lease, self._identity, delivered_until)
        return True

    def _is_fresh(self, lease: Any) -> bool:
        """Whether its holder has renewed it, by this feed's own sense of time."""
        renewed = text_of(part_of(lease, "spec").get("renewTime"))
        if renewed != self._seen[0]:
            self._seen = (renewed, time.monotonic())
        return time.monotonic() - self._seen[1] < _LEASE_SECONDS

    def _write(self, lease: Any, holder: str, delivered_until: float | None) -> None:
        meta, spec = dict(lease["metadata"]), dict(part_of(lease, "spec"))
        if delivered_until is not None:
            meta["annotations"] = {
                **part_of(meta, "annotations"), _ANNOTATION: _format(delivered_until),
            }  # fmt: skip
        if spec.get("holderIdentity") != holder:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
            spec["acquireTime"] = _format(self._server.clock.now())
        spec |= {
            "holderIdentity": holder, "leaseDurationSeconds": _LEASE_SECONDS,
            "renewTime": _format(self._server.clock.now()),
        }  # fmt: skip
        body = {
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec,
        }  # fmt: skip
        if "resourceVersion" in meta:
            self._server.send("PUT", f"{self._path}/{self._name}", body=body)
        else:
            self._server.send("POST", self._path, body=body)


def _format(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


_log = logging.getLogger(__name__)
_TICK_SECONDS = 0.25
_DISCOVER_SECONDS = 5.0
_LAG_SECONDS = 1.5
_PURGE_SECONDS = 30.0
_MOST_WAITING, _MOST_LABELS = 200_000, 50_000
_JOB_ID = re.compile(r"[A-Za-z0-9][\w.\-:/+@\[\]]{0,199}")
_MAX_ID = 200
_SHOWN = ("state", "contact")


class Feed:
    """A term of following until ``ending`` or a lost lease; of all namespaces if none is named."""

    def __init__(
        self,
        server: ApiServer,
        ledger: delivery.LedgerClient,
        lease: Lease,
        ending: threading.Event,
        *,
        namespaces: tuple[str, ...] = (),
        selector: Mapping[str, str | None] = MappingProxyType({}),
    ) -> None:
        self.server, self.ledger, self.lease, self._ending = server, ledger, lease, ending
        self.namespaces = namespaces
        self.state = ClusterState(selector)
        self.delivery = delivery.Delivery(ledger, server.clock, self._report)
        self.followers: dict[tuple[str, str], Follower] = {}
        self._kinds: dict[str, Kind] = {}
        self._writer = EventWriter(ledger.cluster)
        self._labels: dict[str, str] = {}
        self._begun = server.clock.now()
        self._discovered, self._purged, self._complaint, self._compared = 0.0, 0.0, "", -1
        self._foreign: set[str] = set()
        self.evaluated_until = 0.0

    def run(self) -> None:
        """Follow until the end or until another feed holds the lease."""
        self.delivery.start()
        try:
            renewed = 0.0
            while not self._ending.wait(_TICK_SECONDS):
                if time.monotonic() - renewed > RENEW_SECONDS:
                    renewed = time.monotonic()
                    if not self.lease.hold(self._delivered_until()):
                        _log.warning("lease=lost")
                        return
                try:
                    self._tick()
                    self._complaint = ""
                except (delivery.AwayError, ServerError, *Failure) as error:
                    if not self._complaint:
                        self._complaint = printable(str(error), 300)
                        _log.warning("feed=waits reason=%r", self._complaint)
                    self._ending.wait(1.0)
        finally:
            for follower in self.followers.values():
                follower.end()
            self.delivery.end(5.0)
            if self._ending.is_set():
                self.lease.release(self._delivered_until() or self.server.clock.now())

    def _tick(self) -> None:
        if time.monotonic() - self._discovered > _DISCOVER_SECONDS:
            self._discover()
        if self.delivery.waiting > _MOST_WAITING or not self._is_complete():
            return
        now = self.server.clock.now()
        jobs = self.state.collect(now, self._may_come)
        for number, job in enumerate(jobs):
            try:
                self._deliver_new(job, now)
            except (delivery.AwayError, *Failure):
                for each in jobs[number:]:
                    self.state.dirty.setdefault(each.uid, now)
                raise
        lists = sum(follower.lists for follower in self.followers.values())
        if lists != self._compared:
            self._compare()
            self._compared = lists
        if not self.state.dirty and all(each.is_settled for each in self.followers.values()):
            self.evaluated_until = now - _LAG_SECONDS
        if now - self._purged > _PURGE_SECONDS:
            self._purged = now
            self.state.purge(now)

    def _discover(self) -> None:
        self._kinds = discover(self.server)
        self._discovered = time.monotonic()
        kinds = [PODS, *(kind for name, kind in self._kinds.items() if name in FOLLOWED)]
        for kind in kinds:
            self._follow(kind)
        for key, follower in list(self.followers.items()):
            if follower.state == "absent" and not follower.is_alive():
                del self.followers[key]

    def _follow(self, kind: Kind) -> None:
        for namespace in self.namespaces or ("",):
            if (kind.name, namespace) not in self.followers:
                follower = Follower(self.server, kind, namespace, self.state.apply)
                self.followers[kind.name, namespace] = follower
                follower.start()

    def _is_complete(self) -> bool:
        return bool(self.followers) and all(
            follower.lists or follower.is_settled for follower in self.followers.values()
        )

    def _may_come(self, parent: Reference) -> bool:
        """Whether an owner that is not there may come; its kind is followed from now on."""
        found = next(
            (k for k in self._kinds.values() if (k.group, k.kind) == (parent.group, parent.kind)),
            None,
        )
        if found is None:
            return False
        self._follow(found)
        return any(
            not (follower.lists or follower.is_settled)
            for (name, _), follower in self.followers.items()
            if name == found.name
        )

    def _deliver_new(self, job: Job, now: float) -> None:
        if job.is_seeded and job.is_finished and not job.pods:
            return
        self._name(job)
        if not job.is_seeded:
            self._seed(job)
        with self.state.lock:
            events = self._writer.new_events(job, now)
        self.delivery.put(events)

    def _name(self, job: Job) -> None:
        """Give it the id of its label, if no other namespace has that, else one of its own."""
        label = job.top.job_id if job.top is not None else ""
        label = label or next((pod.job_id for pod in job.pods.values() if pod.job_id), "")
        if job.has_label and not label:
            return  # one that is taken away changes nothing
        if label and _JOB_ID.fullmatch(label) and self._namespace_of(label, job) == job.namespace:
            job.job_id, job.has_label = label, True
        elif not job.job_id:
            job.job_id = next(filter(partial(self._may_have, job), names_of(job)))

    def _may_have(self, job: Job, name: str) -> bool:
        """Whether a name is a job's: what succeeded is over, any other goes on in its next run."""
        others = [e for e in self.state.jobs.values() if e.job_id == name and e.uid != job.uid]
        if any(each.ending is not None and each.ending.word == "Completed" for each in others):
            return False
        found = self.ledger.find(name)
        is_other = found is not None and found.is_ours and found.uid != job.uid
        return not (is_other and found is not None and found.has_succeeded)

    def _namespace_of(self, label: str, job: Job) -> str:
        if len(self._labels) > _MOST_LABELS:
            self._labels.clear()
        if label not in self._labels:
            found = self.ledger.find(label)
            self._labels[label] = (found.project if found else "") or job.namespace
            if self._labels[label] != job.namespace:
                _log.warning(
                    "job_id=taken id=%s by=%s namespace=%s",
                    label,
                    self._labels[label],
                    job.namespace,
                )
        return self._labels[label]

    def _seed(self, job: Job) -> None:
        if job.created < self._begun + _LAG_SECONDS:
            found = self.ledger.find(job.job_id)
            if found is None and job.has_label:
                found = self.ledger.find(own_id(job))  # the label may be new
            if found is not None and found.is_ours:
                if found.uid == job.uid:
                    _restore(job, found, self._last_seen(found))
                elif found.is_open and not self.state.has_object(found.uid):
                    self._end_missing(job.job_id, found)
        job.is_seeded = True

    def _last_seen(self, found: delivery.Remembered) -> float:
        until = self.lease.delivered_until
        return found.updated if until is None else max(found.updated, min(until, self._begun))

    def _compare(self) -> None:
        """End what the ledger holds open of this cluster and the server no longer has."""
        with self.state.lock:
            present = {
                job.job_id for job in self.state.jobs.values() if job.job_id and not job.is_finished
            }
        for job_id in list(self.ledger.list_open()):
            if job_id in present or job_id in self._foreign:
                continue
            found = self.ledger.find(job_id)
            if found is None or not found.is_ours:
                self._foreign.add(job_id)
            elif found.is_open and not self.state.has_object(found.uid) and self._can_see(found):
                self._end_missing(job_id, found)

    def _can_see(self, found: delivery.Remembered) -> bool:
        """Whether the kind of a job is followed, or has left the server."""
        states = {f.state for (name, _), f in self.followers.items() if name == found.kind}
        is_unfollowed = not states and found.kind in self._kinds
        if is_unfollowed:
            self._follow(self._kinds[found.kind])
        if self.namespaces and found.project not in self.namespaces:
            return False
        return not is_unfollowed and states <= {"followed", "absent", "away"}

    def _end_missing(self, job_id: str, found: delivery.Remembered) -> None:
        job = Job(found.uid, found.project, "", found.kind, found.updated, job_id=job_id)
        last_seen = self._last_seen(found)
        _restore(job, found, last_seen)
        job.ending = unseen(last_seen)
        self.delivery.put(self._writer.new_events(job, last_seen))

    def _report(self) -> tuple[float, Counter[str], dict[str, Any]]:
        counts = Counter(left_out=self.state.refused, workloads_left_out=self.state.left_out)
        kinds = {
            # Of several namespaces that are followed the first is shown.
            kind: {name: getattr(follower, name) for name in _SHOWN}
            for (kind, namespace), follower in list(self.followers.items())
            if namespace in {"", *self.namespaces[:1]}
        }
        return self.evaluated_until, counts, {"source": "kubernetes", "kinds": kinds}

    def _delivered_until(self) -> float | None:
        """Until when all that happened is in the ledger; None while that does not move."""
        if self.delivery.waiting or not self.evaluated_until:
            return None
        return self.evaluated_until


def own_id(job: Job) -> str:
    """Namespace, kind and name; of one that is too long the begin, and a part of the uid."""
    kind = job.kind.partition(".")[0].removesuffix("s") or "job"
    kind = "vcjob" if job.kind == "jobs.batch.volcano.sh" else kind
    name = f"{job.namespace}/{kind}/{job.name}"
    return name if len(name) <= _MAX_ID else f"{name[: _MAX_ID - 9]}@{job.uid[:8]}"


def names_of(job: Job) -> Iterator[str]:
    """Its own id, and what follows where that was used before."""
    name = own_id(job)
    yield name
    yield from (f"{name[: _MAX_ID - 9]}@{number}" for number in count(2))


def _restore(job: Job, found: delivery.Remembered, last_seen: float) -> None:
    """Give a job back what the ledger has of it; pods that are gone ended unseen."""
    visible = {run.part for pod in job.pods.values() for run in pod.runs.values()}
    for part, run in found.runs.items():
        if part in visible:
            continue
        if run.end is None:
            run.end, run.fate = max(run.begin, last_seen), "unseen"
        job.runs[part] = run
    job.sent |= found.sent
    job.described = found.described
