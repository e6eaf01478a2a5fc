"""What the host does to each job: pressure, throttling and memory of the group of its ranks."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.cgroups import (
    ControlGroup,
    find_group,
    memory_bytes,
    memory_events,
    throttled_seconds,
)
from lockstep_agent.sources.open_files import OpenFiles
from lockstep_agent.sources.pressure import stalled_seconds
from lockstep_agent.sources.processes import is_running
from lockstep_catalogue import host
from lockstep_catalogue.fabric_labels import MEMORY_EVENT, RESOURCE
from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_records.jobs import list_attempts, list_jobs, list_pages
from lockstep_records.page.reader import PageError, read_page

_MOST_JOBS = 16
Pids = Mapping[str, list[int]]


class JobHost:
    """Reads the control group of each job that has running ranks here.

    Args:
        sysfs: where /sys is.
        procfs: where /proc is.
        running: the processes of each job's ranks, by job id.
    """

    name = "job_host"
    tier = Tier.TEN_SECONDS

    def __init__(self, sysfs: str, procfs: str, running: Callable[[], Pids]) -> None:
        self._sysfs, self._procfs, self._running = sysfs, procfs, running
        self._files = OpenFiles(max_open=0)

    def collect(self) -> Iterator[Reading]:
        """What the kernel tells of each group."""
        for job_id, pids in list(self._running().items())[:_MOST_JOBS]:
            group = find_group(self._sysfs, self._procfs, pids, self._files)
            if group is not None:
                yield from self._of_group(job_id, group)

    def _of_group(self, job_id: str, group: ControlGroup) -> Iterator[Reading]:
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


def running_ranks(root: Path, procfs: Path) -> dict[str, list[int]]:
    """The processes of each job's newest attempt that still run, by job id."""
    found: dict[str, list[int]] = {}
    for folder in list_jobs(root):
        try:
            attempts = list_attempts(folder)
            paths = list_pages(attempts[-1]) if attempts else []
        except OSError:
            continue  # the folder is being removed
        pids = [pid for path in paths if (pid := _running_pid(path, procfs)) is not None]
        if pids:
            found[folder.name] = pids
    return found


def _running_pid(path: Path, procfs: Path) -> int | None:
    try:
        page = read_page(path)
    except PageError:
        return None
    pid = int(page.identity["pid"])
    alive = is_running(procfs, pid, int(page.identity["start_monotonic_ns"]))
    return pid if alive and page.phase not in ENDED_PHASES else None
