"""The host's share of each job: its ranks' control group, and the TCP of their namespace."""

from collections.abc import Iterator

from lockstep_agent.collector import AnyReading, Reading, Tier, present
from lockstep_agent.exposition.series_budget import nested_shares
from lockstep_agent.jobs.job_snapshot import JobSnapshot
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.sources import cgroups
from lockstep_agent.sources.sysfs import OpenFiles, stalled_seconds
from lockstep_catalogue import host
from lockstep_catalogue.labels import MEMORY_EVENT, RESOURCE
from lockstep_catalogue.vocabulary import ENDED_PHASES

_TCP = {host.JOB_TCP_SEGMENTS: "OutSegs", host.JOB_TCP_RETRANSMITS: "RetransSegs"}
_NAMES_AND_VALUES = 2
_MAX_JOBS = 16  # bounds the series of a node on which many small jobs run


class JobHost:
    """Reads the control group of each job that has running ranks here."""

    name = "job_host"
    tier = Tier.TEN_SECONDS

    def __init__(self, sysfs: str, procfs: str, pages: PageStore) -> None:
        self._sysfs, self._procfs, self._pages = sysfs, procfs, pages
        self._files = OpenFiles(max_open=0)
        self._served: frozenset[str] = frozenset()

    def collect(self) -> Iterator[AnyReading]:
        """Pressure, throttled seconds and memory of each group, as the kernel counts them."""
        self._served = self._choose()
        yield from self._pages.readings(self.name, self._job_readings)

    def _choose(self) -> frozenset[str]:
        """Running jobs, of each user his fair share of the most that are served."""
        running = list(
            self._pages.each(self.name, lambda job: [job.job_id] if running_pids(job) else [])
        )
        if len(running) > _MAX_JOBS:
            owners = {job_id: self._pages.owner_of(job_id) for job_id in running}
            shares = nested_shares(dict.fromkeys(running, 1), owners, _MAX_JOBS)
            running = [job_id for job_id in running if shares[job_id]]
        return frozenset(running)

    def _job_readings(self, job: JobSnapshot) -> Iterator[Reading]:
        if job.job_id not in self._served:
            return
        pids = running_pids(job)
        if not pids:
            return
        yield from self._tcp_readings(job.job_id, pids)
        group = cgroups.find_group(self._sysfs, self._procfs, pids, self._files)
        if group is not None:
            yield from self._group_readings(job.job_id, group)

    def _tcp_readings(self, job_id: str, pids: list[int]) -> Iterator[Reading]:
        """Segments and retransmits, by the first rank: those of a job share a namespace."""
        counts = tcp_counts(self._files.text(f"{self._procfs}/{pids[0]}/net/snmp"))
        for metric, name in _TCP.items():
            yield from present(metric, (job_id,), counts.get(name))

    def _group_readings(self, job_id: str, group: cgroups.ControlGroup) -> Iterator[Reading]:
        labels = (job_id,)
        for resource in RESOURCE.values if group.unified else ():
            text = self._files.text(f"{group.unified}/{resource}.pressure")
            for pressure, seconds in stalled_seconds(text):
                yield Reading(host.JOB_PRESSURE_SECONDS, (job_id, resource, pressure), seconds)
        throttled = cgroups.throttled_seconds(group, self._files)
        yield from present(host.JOB_THROTTLED_SECONDS, labels, throttled)
        used, limit = cgroups.memory_bytes(group, self._files)
        yield from present(host.JOB_MEMORY, labels, used)
        yield from present(host.JOB_MEMORY_LIMIT, labels, limit)
        events = cgroups.memory_events(group, self._files)
        for event in MEMORY_EVENT.values:
            yield from present(host.JOB_MEMORY_EVENTS, (job_id, event), events.get(event))


def tcp_counts(snmp: str | None) -> dict[str, int]:
    """Counters of TCP by name: a line of names and a line of values; empty where unreadable."""
    lines = [line.split()[1:] for line in (snmp or "").splitlines() if line.startswith("Tcp:")]
    if len(lines) != _NAMES_AND_VALUES:
        return {}
    counts = zip(*lines, strict=False)
    return {name: int(value) for name, value in counts if value.isascii() and value.isdigit()}


def running_pids(job: JobSnapshot) -> list[int]:
    """Processes of a job's newest attempt that run and have not reported their end."""
    processes = [job.process(page) for page in job.newest_pages() if page.phase not in ENDED_PHASES]
    # A rank in a PID namespace that this agent does not see has no pid here.
    return [process.pid for process in processes if process and process.pid is not None]
