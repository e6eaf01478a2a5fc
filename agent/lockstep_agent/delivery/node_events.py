"""Writes node incidents (Xids, OOM kills, link and file-server faults) as events of its jobs.

An event goes into the file of the job, where the launcher judges the end of an attempt by it, the
report shows it and the ledger gets it in order. A job without such a file, or whose file the
agent may not write, gets it by the spool.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.collectors.gpu.allocation import GpuInUse
from lockstep_agent.jobs.job_snapshot import JobSnapshot
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.jobs.pages import last_events
from lockstep_agent.recent_events import RecentEvents
from lockstep_catalogue import incidents as metrics
from lockstep_catalogue.incidents import XID_TABLE
from lockstep_outcomes.evidence import Presence, SignOrigin, find_owners
from lockstep_records.events.event import FILE_NAME, Event, append_event, stable_id
from lockstep_records.page.reader import Page

# In which an incident may still be about who is only now seen.
_SLACK_SECONDS = 60.0
# Between two readings of the driver's list of processes, and a tick.
_PROCESSES_SECONDS = 12.0
_MAX_WRITTEN = 10_000
_NIC_SIGNS = frozenset({"link_down", "health", "queue_error", "timeout"})
_HOST_SIGNS = {"oom_host": "host_oom", "oom_cgroup": "host_oom", "file_server_silent": "io_error"}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sign:
    """An incident in the words of the outcome table.

    Attributes:
        address: PCI address of the GPU concerned; None when the incident concerns no GPU.
        pid: of the process concerned; None when the incident concerns no process.
        user: user id of that process; None where the kernel does not tell.
    """

    name: str
    detail: str
    address: str | None = None
    pid: int | None = None
    user: int | None = None


class NodeEvents:
    """Writes a ``node_event`` for each incident and each job that it affects.

    Args:
        incidents: of the kernel log and the driver.
        gpus: the GPUs as the driver last reported them; calls no driver.
        has_used: whether a user's process was on a GPU since a wall clock; see ``GpuAllocation``.
        rank_appeared: called when a rank is seen for the first time.
    """

    name = "node_events"
    tier = Tier.EVERY_TICK

    def __init__(
        self,
        incidents: RecentEvents,
        pages: PageStore,
        gpus: Callable[[], Iterable[GpuInUse]],
        node: str,
        *,
        has_used: Callable[[str, int, float], bool],
        rank_appeared: Callable[[], object] = lambda: None,
    ) -> None:
        self._has_used, self._rank_appeared = has_used, rank_appeared
        self._presences: dict[Path, Presence] = {}
        self._last_id = -1
        self._incidents, self._pages, self._gpus, self._node = incidents, pages, gpus, node
        self._uuids: dict[str, tuple[str, ...]] = {}
        self._written: dict[str, None] = {}
        self._unwritable: list[Event] = []
        self._lock = threading.Lock()

    def collect(self) -> Iterator[Reading]:
        """No readings; writes what is new."""
        devices: dict[int | None, str] = {}
        for gpu in self._gpus():
            # The driver no longer lists a GPU that it lost: what it was stays known.
            if gpu.address:
                self._uuids[gpu.address] = (gpu.uuid, *gpu.instances)
            devices |= dict.fromkeys(gpu.pids, gpu.uuid)
        incidents = self._due()
        signs = [(sign, each) for each in incidents if (sign := _sign_of(each)) is not None]
        self._pages.guard.begin(self.name)
        seen: set[Path] = set()
        yield from self._pages.each(self.name, lambda job: self._note_presence(job, devices, seen))
        self._end_unseen(seen)
        if signs:
            owners = [find_owners(self._origin(*each), self._presences.values()) for each in signs]
            found = [(*each, ranks) for each, ranks in zip(signs, owners, strict=True) if ranks]
            yield from self._pages.each(self.name, lambda job: self._report_all(job, found))

    def _note_presence(
        self, job: JobSnapshot, devices: Mapping[int | None, str], seen: set[Path]
    ) -> Iterator[Reading]:
        """Keeps when each rank began and ended, by its page and the kernel's word.

        A page that names no GPU is of the one on which the driver lists its process, or did.
        """
        for page in job.newest_pages():
            seen.add(page.path)
            before, process = self._presences.get(page.path), job.process(page)
            if before is None and process is not None:
                self._rank_appeared()
            end = None if process is not None else _end_of(before, page)
            # By the kernel: a page states a number of its own namespace, or any.
            pid = process.pid if process is not None else before.pid if before is not None else None
            listed = devices.get(pid) or (before.device if before is not None else "")
            self._presences[page.path] = Presence(
                job_id=job.job_id,
                attempt=int(page.path.parent.name),
                rank=page.identity["rank"],
                begin=page.identity["start_wall_ns"] / 1e9,
                end=end,
                pid=pid,
                device=page.identity["gpu_uuid"] or listed,
            )
        return iter(())

    def _end_unseen(self, seen: set[Path]) -> None:
        """Ends ranks of older attempts and removed jobs, and forgets them after a while."""
        now = time.time()
        for path in self._presences.keys() - seen:
            presence = self._presences[path]
            if presence.end is None:
                self._presences[path] = replace(presence, end=now)
            elif presence.end < now - 2 * _SLACK_SECONDS:
                del self._presences[path]

    def _origin(self, sign: _Sign, incident: dict[str, Any]) -> SignOrigin:
        devices = None if sign.address is None else frozenset(self._uuids.get(sign.address, ()))
        times = (incident["first_seconds"], incident["last_seconds"])
        return SignOrigin(times=times, pid=sign.pid, devices=devices)

    def _report_all(
        self, job: JobSnapshot, signs: list[tuple[_Sign, dict[str, Any], list[Presence]]]
    ) -> Iterator[Reading]:
        events = []
        for sign, incident, owners in signs:
            own = [presence for presence in owners if presence.job_id == job.job_id]
            if own and self._is_of_user(job, sign, incident["first_seconds"]):
                events.append(_event(job.owner, sign, own, incident, self._node))
        new = [event for event in events if event.id not in self._written]
        if new:
            self._write(job, new)
        return iter(())

    def _is_of_user(self, job: JobSnapshot, sign: _Sign, begin: float) -> bool:
        """Whether driver and kernel say so too: a page may name any GPU and any process."""
        if sign.user not in {None, job.owner}:
            return False
        if sign.address is None:
            return True
        uuids = self._uuids.get(sign.address, ())
        return bool(uuids) and self._has_used(uuids[0], job.owner, begin - _PROCESSES_SECONDS)

    def poll(self) -> list[Event]:
        """Takes the events that no file could hold, from another thread."""
        with self._lock:
            events, self._unwritable = self._unwritable, []
        return events

    def _due(self) -> list[dict[str, Any]]:
        """Incidents that are new, or so young that their GPU or page may only now be known."""
        newest = self._incidents.newest()
        oldest_seconds = time.time() - _SLACK_SECONDS
        due = [
            incident
            for incident in newest
            if incident["id"] > self._last_id or incident["last_seconds"] >= oldest_seconds
        ]
        self._last_id = max((incident["id"] for incident in newest), default=self._last_id)
        return due

    def _write(self, job: JobSnapshot, events: list[Event]) -> None:
        self._written |= dict.fromkeys(event.id for event in events)
        while len(self._written) > _MAX_WRITTEN:
            del self._written[next(iter(self._written))]
        try:
            # An agent that starts again finds the incidents of its state once more. A job without
            # a file of its own user's gets its events by the spool.
            written = {event.id for event in last_events(job.folder / FILE_NAME, job.owner)}
            while events:
                if events[0].id not in written:
                    append_event(job.folder, events[0])
                events = events[1:]
        except OSError:
            with self._lock:
                self._unwritable += events


def _end_of(before: Presence | None, page: Page) -> float:
    """When a rank that does not run has ended: as it was seen, or else its last progress."""
    if before is None:
        return page.progress_wall_seconds
    return time.time() if before.end is None else before.end


def _event(
    owner: int, sign: _Sign, owners: list[Presence], incident: dict[str, Any], node: str
) -> Event:
    """The event of a job; it names ranks where the sign is of a GPU or a process."""
    job_id, attempt = owners[0].job_id, max(presence.attempt for presence in owners)
    ranks = sorted({presence.rank for presence in owners if presence.attempt == attempt})
    is_of_node = sign.address is None and sign.pid is None
    labels = sorted(incident["labels"].items())
    return Event(
        kind="node_event",
        job_id=job_id,
        attempt=attempt,
        fields={"sign": sign.name, "detail": sign.detail}
        | ({} if is_of_node else {"ranks": ranks}),
        time=incident["first_seconds"],
        id=stable_id(node, job_id, attempt, labels, incident["first_seconds"]),
        node=node,
        owner=owner,
    )


def _sign_of(incident: dict[str, Any]) -> _Sign | None:
    """The sign of an incident; None for one that ends no job."""
    if not incident["counted"] or incident["labels"].get("xid", "").endswith(metrics.NONFATAL):
        return None
    name, labels, text = incident["metric"], incident["labels"], incident["text"][:400]
    if name == metrics.GPU_XID_INCIDENTS.name:
        address, _, number = labels.values()
        xid = XID_TABLE.get(number)
        words = f"Xid{number} {xid.name if xid else 'of the driver'}"
        named = _number_of(incident, "pid") if xid is not None and xid.of_a_process else None
        return _Sign(name="xid", detail=words, address=address, pid=named)
    if name == metrics.NVSWITCH_INCIDENTS.name:
        return _Sign(name="xid", detail=text) if "fatal" in labels.values() else None
    if name == metrics.NIC_INCIDENTS.name:
        return _Sign(name="ib_error", detail=text) if _NIC_SIGNS & {*labels.values()} else None
    sign = next((_HOST_SIGNS[value] for value in labels.values() if value in _HOST_SIGNS), None)
    if sign is None:
        return None
    pid, user = _number_of(incident, "pid"), _number_of(incident, "uid")
    return _Sign(name=sign, detail=text, pid=pid, user=user)


def _number_of(incident: dict[str, Any], name: str) -> int | None:
    text = incident["facts"].get(name, "")
    return int(text) if text.isdigit() else None
