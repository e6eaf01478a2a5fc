"""The control group that the ranks of a job share, in version 2 or 1 of the interface."""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lockstep_agent.sources.open_files import OpenFiles

_SLURM_JOB = re.compile(r"(.*/job_[0-9]+)(?:/.*)?")
_LINE = re.compile(r"^[0-9]+:([\w,=]*):(/.*)$", re.MULTILINE)
_MOST_LEVELS = 16
_UNLIMITED_BYTES = 1 << 60  # version 1 writes the largest number of pages for no limit
_UNIFIED = ""


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """Where a job's group is, for each controller.

    Attributes:
        unified: folder of version 2; None where only version 1 has controllers.
        cpu: folder of the cpu controller of version 1.
        memory: folder of the memory controller of version 1.
        root: what no folder goes above.
    """

    unified: str | None
    cpu: str | None
    memory: str | None
    root: str

    def upwards(self, folder: str) -> Iterator[str]:
        """A folder and those above it below the root, the innermost first."""
        for _ in range(_MOST_LEVELS):
            if not folder.startswith(self.root + "/"):
                return
            yield folder
            folder = folder.rpartition("/")[0]


def find_group(
    sysfs: str, procfs: str, pids: Iterable[int], files: OpenFiles
) -> ControlGroup | None:
    """The innermost group that all these processes are in; None without any.

    Under Slurm it is the job's, though all processes be of one step.
    """
    paths = [_paths(files.text(f"{procfs}/{pid}/cgroup")) for pid in pids]
    told = [of for of in paths if of]
    if not told:
        return None
    root = f"{sysfs}/fs/cgroup"

    def folder(controller: str, *below: str) -> str | None:
        shared = _shared([of[controller] for of in told if controller in of])
        candidates = (f"{root}/{part}{shared}" for part in below)
        found = (os.path.normpath(path) for path in candidates) if shared is not None else ()
        return next((path for path in found if os.path.isdir(path)), None)  # noqa: PTH112  # text

    unified = None
    if files.read(f"{root}/cgroup.controllers") is not None:
        unified = folder(_UNIFIED, "")
    return ControlGroup(
        unified, folder("cpu", "cpu", "cpu,cpuacct"), folder("memory", "memory"), root
    )


def throttled_seconds(group: ControlGroup, files: OpenFiles) -> float | None:
    """Time for which the job's limit on processor time held it back."""
    if group.unified:
        limited = [at for at in group.upwards(group.unified) if _has_quota(files, f"{at}/cpu.max")]
        return _seconds(files, (limited or [group.unified])[0], "throttled_usec", 1e-6)
    if group.cpu:
        quota = "cpu.cfs_quota_us"
        limited = [at for at in group.upwards(group.cpu) if files.count(f"{at}/{quota}")]
        return _seconds(files, (limited or [group.cpu])[0], "throttled_time", 1e-9)
    return None


def memory_bytes(group: ControlGroup, files: OpenFiles) -> tuple[int | None, int | None]:
    """Memory used and its limit, of the innermost group that has a limit, else of the job's."""
    folder = group.unified or group.memory
    if not folder:
        return None, None
    used, most = "memory.usage_in_bytes", "memory.limit_in_bytes"
    if group.unified:
        used, most = "memory.current", "memory.max"
    for at in group.upwards(folder):
        limit = files.count(f"{at}/{most}")
        if limit is not None and limit < _UNLIMITED_BYTES:
            return files.count(f"{at}/{used}"), limit
    return files.count(f"{folder}/{used}"), None


def memory_events(group: ControlGroup, files: OpenFiles) -> dict[str, int]:
    """How often the kernel acted on a limit, by its own names."""
    if group.unified:
        return _table(files.text(f"{group.unified}/memory.events"))
    if not group.memory:
        return {}
    kills = _table(files.text(f"{group.memory}/memory.oom_control"))
    told = {"max": files.count(f"{group.memory}/memory.failcnt"), "oom_kill": kills.get("oom_kill")}
    return {event: count for event, count in told.items() if count is not None}


def _paths(text: str | None) -> dict[str, str]:
    return {
        controller: path
        for controllers, path in _LINE.findall(text or "")
        for controller in controllers.split(",")
    }


def _shared(paths: list[str]) -> str | None:
    """What begins all paths; groups above the agent's own namespace are out of its sight."""
    if not paths or any(".." in path.split("/") for path in paths):
        return None
    shared = os.path.commonpath(paths)
    slurm = _SLURM_JOB.fullmatch(shared)
    return slurm[1] if slurm else shared


def _has_quota(files: OpenFiles, path: str) -> bool:
    return (files.text(path) or "max").partition(" ")[0] != "max"


def _seconds(files: OpenFiles, folder: str, key: str, factor: float) -> float | None:
    count = _table(files.text(f"{folder}/cpu.stat")).get(key)
    return None if count is None else count * factor


def _table(text: str | None) -> dict[str, int]:
    pairs = (line.split() for line in (text or "").splitlines())
    return {
        pair[0]: int(pair[1])
        for pair in pairs
        if len(pair) == 2 and pair[1].isascii() and pair[1].isdigit() and len(pair[1]) <= 20  # noqa: PLR2004  # key, value
    }
