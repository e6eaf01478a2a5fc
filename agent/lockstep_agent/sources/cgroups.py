"""The control group that the ranks of a job share, in version 2 or 1 of the interface."""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lockstep_agent.sources.sysfs import OpenFiles

_SLURM_JOB = re.compile(r"(.*/job_[0-9]+)(?:/.*)?")
_MEMBERSHIP = re.compile(r"^[0-9]+:([\w,=]*):(/.*)$", re.MULTILINE)
_MAX_LEVELS = 16
_UNLIMITED_BYTES = 1 << 60  # version 1 writes the largest number of pages for no limit
_UNIFIED = ""  # the name that /proc/PID/cgroup gives the hierarchy of version 2


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The folders of a job's group, by controller.

    Attributes:
        unified: folder of version 2; None where only version 1 has controllers.
        cpu: folder of the cpu controller of version 1.
        memory: folder of the memory controller of version 1.
        root: folder above which no search goes.
    """

    unified: str | None
    cpu: str | None
    memory: str | None
    root: str

    def upwards(self, folder: str) -> Iterator[str]:
        """A folder and those above it, below the root, the innermost first."""
        for _ in range(_MAX_LEVELS):
            if not folder.startswith(self.root + "/"):
                return
            yield folder
            folder = folder.rpartition("/")[0]


def find_group(
    sysfs: str, procfs: str, pids: Iterable[int], files: OpenFiles
) -> ControlGroup | None:
    """The innermost group that holds all these processes; None without any.

    Under Slurm it is the group of the job, even if all processes belong to one step.
    """
    paths = [_parse_membership(files.text(f"{procfs}/{pid}/cgroup")) for pid in pids]
    memberships = [by_controller for by_controller in paths if by_controller]
    if not memberships:
        return None
    root = f"{sysfs}/fs/cgroup"

    def folder(controller: str, *mounts: str) -> str | None:
        shared = _shared_path([each[controller] for each in memberships if controller in each])
        if shared is None:
            return None
        candidates = (os.path.normpath(f"{root}/{mount}{shared}") for mount in mounts)
        return next((path for path in candidates if os.path.isdir(path)), None)  # noqa: PTH112  # text

    # hybrid hosts mount version 2 without controllers: only this file says that it has them
    unified = None
    if files.read(f"{root}/cgroup.controllers") is not None:
        unified = folder(_UNIFIED, "")
    return ControlGroup(
        unified, folder("cpu", "cpu", "cpu,cpuacct"), folder("memory", "memory"), root
    )


def throttled_seconds(group: ControlGroup, files: OpenFiles) -> float | None:
    """Seconds for which a limit on processor time held the job back; None where unknown."""
    innermost = group.unified or group.cpu
    if not innermost:
        return None
    quota_file, key, factor = "cpu.cfs_quota_us", "throttled_time", 1e-9
    if group.unified:
        quota_file, key, factor = "cpu.max", "throttled_usec", 1e-6
    # throttling is counted in the group that has the quota: on Kubernetes the pod, above the rank
    folders = group.upwards(innermost)
    limited = (folder for folder in folders if _has_quota(files, f"{folder}/{quota_file}"))
    count = _parse_table(files.text(f"{next(limited, innermost)}/cpu.stat")).get(key)
    return None if count is None else count * factor


def memory_bytes(group: ControlGroup, files: OpenFiles) -> tuple[int | None, int | None]:
    """Used and allowed bytes of the innermost group with a limit, else those of the job's group."""
    innermost = group.unified or group.memory
    if not innermost:
        return None, None
    usage_file, limit_file = "memory.usage_in_bytes", "memory.limit_in_bytes"
    if group.unified:
        usage_file, limit_file = "memory.current", "memory.max"
    for folder in group.upwards(innermost):
        limit = files.count(f"{folder}/{limit_file}")
        if limit is not None and limit < _UNLIMITED_BYTES:
            return files.count(f"{folder}/{usage_file}"), limit
    return files.count(f"{innermost}/{usage_file}"), None


def memory_events(group: ControlGroup, files: OpenFiles) -> dict[str, int]:
    """How often the kernel acted on a memory limit, by the kernel's names."""
    if group.unified:
        return _parse_table(files.text(f"{group.unified}/memory.events"))
    if not group.memory:
        return {}
    kills = _parse_table(files.text(f"{group.memory}/memory.oom_control")).get("oom_kill")
    counts = {"max": files.count(f"{group.memory}/memory.failcnt"), "oom_kill": kills}
    return {event: count for event, count in counts.items() if count is not None}


def _parse_membership(text: str | None) -> dict[str, str]:
    """Path of a process by controller, out of ``/proc/PID/cgroup``."""
    return {
        controller: path
        for controllers, path in _MEMBERSHIP.findall(text or "")
        for controller in controllers.split(",")
    }


def _shared_path(paths: list[str]) -> str | None:
    """The common beginning of all paths; None for a group outside the agent's namespace."""
    if not paths or any(".." in path.split("/") for path in paths):
        return None
    shared = os.path.commonpath(paths)
    slurm = _SLURM_JOB.fullmatch(shared)
    return slurm[1] if slurm else shared


def _has_quota(files: OpenFiles, path: str) -> bool:
    """Whether a limit stands first in a file; without one that is "max", -1 in version 1."""
    return (files.text(path) or "").partition(" ")[0].isdecimal()


def _parse_table(text: str | None) -> dict[str, int]:
    rows = (line.split() for line in (text or "").splitlines())
    return {
        row[0]: int(row[1])
        for row in rows
        if len(row) == 2 and row[1].isascii() and row[1].isdigit() and len(row[1]) <= 20  # noqa: PLR2004  # key, value
    }
