"""Writes node incidents (Xids, OOM kills, link and file-server faults) as events of its jobs.

An event goes into the file of the job, where the launcher judges the end of an attempt by it, the
report shows it and the ledger gets it in order. A job without such a file, or whose file the
agent may not write, gets it by the spool.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.collectors.gpu.allocation import GpuInUse
from lockstep_agent.jobs.job_snapshot import JobSnapshot
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.jobs.pages import last_events
from lockstep_agent.recent_events import RecentEvents
from lockstep_catalogue import incidents as metrics
from lockstep_catalogue.incidents import XID_TABLE
from lockstep_records.events.event import FILE_NAME, Event, append_event, stable_id
from lockstep_records.page.reader import Page

# Between the fault of a device and the line in the log, or the tick of the agent.
_SLACK_SECONDS = 60.0
_MAX_WRITTEN = 10_000
_NIC_SIGNS = frozenset({"link_down", "health", "queue_error", "timeout"})
_USER = re.compile(r"\bUID:(\d{1,10})\b")
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
    ) -> None:
        self._has_used = has_used
        self._last_id = -1
        self._incidents, self._pages, self._gpus, self._node = incidents, pages, gpus, node
        self._uuids: dict[str, tuple[str, ...]] = {}
        self._written: dict[str, None] = {}
        self._unwritable: list[Event] = []
        self._lock = threading.Lock()

    def collect(self) -> Iterator[Reading]:
        """No readings; writes what is new."""
        for gpu in self._gpus():
            # The driver no longer lists a GPU that it lost: what it was stays known.
            if gpu.address:
                self._uuids[gpu.address] = (gpu.uuid, *gpu.instances)
        incidents = self._due()
        signs = [(sign, each) for each in incidents if (sign := _sign_of(each)) is not None]
        self._pages.guard.begin(self.name)
        if signs:
            yield from self._pages.each(self.name, lambda job: self._report_all(job, signs))

    def _report_all(
        self, job: JobSnapshot, signs: list[tuple[_Sign, dict[str, Any]]]
    ) -> Iterator[Reading]:
        found = [self._event(job, *each) for each in signs] if job.attempts else []
        events = [each for each in found if each is not None and each.id not in self._written]
        if events:
            self._write(job, events)
        return iter(())

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

    def _ranks(
        self, job: JobSnapshot, sign: _Sign, incident: dict[str, Any]
    ) -> tuple[int, ...] | None:
        """Ranks of a job that an incident affects; None when it does not affect the job."""
        begin, end = incident["first_seconds"], incident["last_seconds"]
        pages = [page for page in job.newest_pages() if _is_at(job, page, begin, end)]
        if sign.address is not None:
            uuids = self._uuids.get(sign.address, ())
            # A page may name any GPU: the driver must have listed a process of the job's user.
            if not uuids or not self._has_used(uuids[0], job.owner, begin - _SLACK_SECONDS):
                return None
            pages = [page for page in pages if page.identity["gpu_uuid"] in uuids]
        elif sign.pid is not None:
            # The kernel tells whose process it ended; the page may name any.
            if sign.user not in {None, job.owner}:
                return None
            pages = [page for page in pages if page.identity["pid"] == sign.pid]
        elif pages:
            return ()
        return tuple(int(page.identity["rank"]) for page in pages) or None

    def _event(self, job: JobSnapshot, sign: _Sign, incident: dict[str, Any]) -> Event | None:
        ranks = self._ranks(job, sign, incident)
        return None if ranks is None else _event(job, sign, ranks, incident, self._node)

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


def _is_at(job: JobSnapshot, page: Page, begin: float, end: float) -> bool:
    """Whether a rank ran at the time of an incident."""
    born = page.identity["start_wall_ns"] / 1e9
    last = float("inf") if job.is_running(page) else page.progress_wall_seconds
    return born - _SLACK_SECONDS <= end and begin <= last + _SLACK_SECONDS


def _event(
    job: JobSnapshot, sign: _Sign, ranks: tuple[int, ...], incident: dict[str, Any], node: str
) -> Event:
    attempt = int(job.attempts[-1][0].parent.name) if job.attempts[-1] else 0
    fields: dict[str, Any] = {"sign": sign.name, "detail": sign.detail}
    labels = sorted(incident["labels"].items())
    return Event(
        kind="node_event",
        job_id=job.job_id,
        attempt=attempt,
        fields=fields | ({"ranks": list(ranks)} if ranks else {}),
        time=incident["first_seconds"],
        id=stable_id(node, job.job_id, attempt, labels, incident["first_seconds"]),
        node=node,
        owner=job.owner,
    )


def _sign_of(incident: dict[str, Any]) -> _Sign | None:
    """The sign of an incident; None for one that ends no job."""
    if not incident["counted"]:
        return None
    name, labels, text = incident["metric"], incident["labels"], incident["text"][:400]
    if name == metrics.GPU_XID_INCIDENTS.name:
        address, _, number = labels.values()
        xid = XID_TABLE.get(int(number))
        words = f"Xid{number} {xid.name if xid else 'of the driver'}"
        return _Sign(name="xid", detail=words, address=address)
    if name == metrics.NVSWITCH_INCIDENTS.name:
        return _Sign(name="xid", detail=text) if "fatal" in labels.values() else None
    if name == metrics.NIC_INCIDENTS.name:
        return _Sign(name="ib_error", detail=text) if _NIC_SIGNS & {*labels.values()} else None
    sign = next((_HOST_SIGNS[value] for value in labels.values() if value in _HOST_SIGNS), None)
    if sign is None:
        return None
    pid = incident["facts"].get("pid", "")
    user = _USER.search(text)
    return _Sign(
        name=sign,
        detail=text,
        pid=int(pid) if pid.isdigit() else None,
        user=int(user[1]) if user else None,
    )
