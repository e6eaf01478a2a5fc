"""What each job gets of its host: its ranks' control group, and the TCP of their namespace."""

from collections.abc import Callable, Iterator, Mapping

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.jobs.page_store import JobSnapshot, PageStore
from lockstep_agent.sources.cgroups import (
    ControlGroup,
    find_group,
    memory_bytes,
    memory_events,
    throttled_seconds,
)
from lockstep_agent.sources.open_files import OpenFiles
from lockstep_agent.sources.pressure import stalled_seconds
from lockstep_catalogue import host
from lockstep_catalogue.fabric_labels import MEMORY_EVENT, RESOURCE
from lockstep_catalogue.vocabulary import ENDED_PHASES

_TCP = {host.JOB_TCP_SEGMENTS: "OutSegs", host.JOB_TCP_RETRANSMITS: "RetransSegs"}
_NAMES_AND_VALUES = 2
_MAX_JOBS = 16  # bounds the series of a node on which many small jobs run


class JobHost:
    """Reads the control group of each job that has running ranks here.

    Args:
        sysfs: where /sys is mounted.
        procfs: where /proc is mounted.
        running: processes of the ranks that run, by job id; see ``running_pids``.
    """

    name = "job_host"
    tier = Tier.TEN_SECONDS

    def __init__(
        self, sysfs: str, procfs: str, running: Callable[[], Mapping[str, list[int]]]
    ) -> None:
        self._sysfs, self._procfs, self._running = sysfs, procfs, running
        self._files = OpenFiles(max_open=0)

    def collect(self) -> Iterator[Reading]:
        """Pressure, throttled seconds and memory of each group, as the kernel counts them."""
        for job_id, pids in list(self._running().items())[:_MAX_JOBS]:
            yield from self._tcp_readings(job_id, pids)
            group = find_group(self._sysfs, self._procfs, pids, self._files)
            if group is not None:
                yield from self._group_readings(job_id, group)

    def _tcp_readings(self, job_id: str, pids: list[int]) -> Iterator[Reading]:
        """Segments and retransmits, by the first rank: those of a job share a namespace."""
        counts = tcp_counts(self._files.text(f"{self._procfs}/{pids[0]}/net/snmp"))
        for metric, name in _TCP.items():
            if name in counts:
                yield Reading(metric, (job_id,), counts[name])

    def _group_readings(self, job_id: str, group: ControlGroup) -> Iterator[Reading]:
        labels = (job_id,)
        for resource in RESOURCE.values if group.unified else ():
            text = self._files.text(f"{group.unified}/{resource}.pressure")
            for pressure, seconds in stalled_seconds(text):
                yield Reading(host.JOB_PRESSURE_SECONDS, (job_id, resource, pressure), seconds)
        throttled = throttled_seconds(group, self._files)
        if throttled is not None:
            yield Reading(host.JOB_THROTTLED_SECONDS, labels, throttled)
        used, limit = memory_bytes(group, self._files)
        if used is not None:
            yield Reading(host.JOB_MEMORY, labels, used)
        if limit is not None:
            yield Reading(host.JOB_MEMORY_LIMIT, labels, limit)
        events = memory_events(group, self._files)
        for event in MEMORY_EVENT.values:
            if event in events:
                yield Reading(host.JOB_MEMORY_EVENTS, (job_id, event), events[event])


def tcp_counts(snmp: str | None) -> dict[str, int]:
    """Counters of TCP by name: a line of names and a line of values; empty where unreadable."""
    lines = [line.split()[1:] for line in (snmp or "").splitlines() if line.startswith("Tcp:")]
    if len(lines) != _NAMES_AND_VALUES:
        return {}
    counts = zip(*lines, strict=False)
    return {name: int(value) for name, value in counts if value.isascii() and value.isdigit()}


def running_pids(pages: PageStore) -> dict[str, list[int]]:
    """Processes of each job's newest attempt that run and have not reported their end."""
    return {job.job_id: pids for job in pages.jobs() if (pids := _job_pids(job))}


def _job_pids(job: JobSnapshot) -> list[int]:
    processes = [job.process(page) for page in job.newest_pages() if page.phase not in ENDED_PHASES]
    # A rank in a PID namespace that this agent does not see has no pid here.
    return [process.pid for process in processes if process and process.pid is not None]
