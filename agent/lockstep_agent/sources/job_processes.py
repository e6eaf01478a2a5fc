"""Processes of this node that train, by what the kernel says of them and by their own environment.

A finder of one kind reads a process twice in its life at most. The kernel states the user, the
namespaces and the control group; job and rank are the process's own word.
"""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Generic, TypeVar

from lockstep_agent.sources.pods import POD_UID
from lockstep_agent.sources.process_job import read_environment, slurm_job_step
from lockstep_records.files.jobs import fit_job_id

_SECOND_LOOK_SECONDS = 600.0
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_MAX_PROCESSES = 1 << 16
_START_FIELD = 19
IDENTITY_VARIABLES = (
    *("LOCKSTEP_JOB_ID", "RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_LOCALID"),
    *("SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK"),
    *("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"),
)
"""Variables by which ``identify`` tells job and rank."""
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
_WORLD_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")


_WITHOUT = {
    (19, "SYS_PTRACE"): "no process of another user is seen to use NCCL",
    (2, "DAC_READ_SEARCH"): "environments, and libraries in closed folders, are not read: job and"
    " rank come from Slurm's control group and from answers alone",
}


def missing_words() -> dict[str, str]:
    """A sentence, by capability, for each that this process lacks to see jobs of other users."""
    status = read_bytes(Path("/proc/self/status"), 16 << 10).decode()
    held = next(int(line.split()[1], 16) for line in status.splitlines() if line[:6] == "CapEff")
    return {
        name: f"NCCL's status sockets and files: without CAP_{name} {words}"
        for (number, name), words in _WITHOUT.items()
        if not held >> number & 1
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class JobProcess:
    """A process of a job.

    Attributes:
        inner_pid: in its own PID namespace.
        user: id, by the kernel.
        job_id: by scheduler, launcher or the address of the meeting; as the process says it.
        rank: of the job; None where nothing says it. Likewise the other two.
        pod_uid: of the pod in whose control group it runs; empty outside of Kubernetes.
        addresses: of its network namespace, by one of which its fellows know it; where they matter.
    """

    pid: int
    inner_pid: int
    start_ticks: int
    user: int
    job_id: str
    rank: int | None
    local_rank: int | None
    world_size: int | None
    pod_uid: str
    addresses: frozenset[str] = frozenset()

    def is_at(self, host: str, pid: int) -> bool:
        """Whether an answer means this process; pods have the same pids on every node."""
        return pid == self.inner_pid and (host in self.addresses or not host)


Found = TypeVar("Found", bound=JobProcess)


@dataclass(slots=True)
class _ProcessRecord(Generic[Found]):
    """What is known of a process, after so many looks."""

    process: Found | None = None
    looks: int = 0


@dataclass(slots=True)
class ProcessFinder(Generic[Found]):
    """Finds the processes of a kind, and remembers what it has read.

    Args:
        settled_seconds: age from which on a process is looked at.
    """

    procfs: Path = Path("/proc")
    settled_seconds: float = 0.0
    clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    _records: dict[tuple[int, int], _ProcessRecord[Found]] = field(default_factory=dict)
    refusals: set[str] = field(default_factory=set)

    def find(self) -> list[Found]:
        """Those that run now."""
        before = self._records
        self._records = {}
        for pid in self._pids():
            start = start_ticks(self.procfs, pid)
            if start is None:
                continue
            each = self._records[pid, start] = before.get((pid, start)) or _ProcessRecord()
            age_seconds = self.clock() - start / _TICKS_PER_SECOND
            is_due = age_seconds >= (self.settled_seconds, _SECOND_LOOK_SECONDS)[each.looks > 0]
            if each.process is None and each.looks < 2 and is_due:  # noqa: PLR2004  # twice a life
                each.looks += 1
                each.process = self._read_guarded(pid, start)
        return [each.process for each in self._records.values() if each.process is not None]

    def _pids(self) -> Iterator[int]:
        try:
            names = [each.name for each in self.procfs.iterdir() if each.name.isdecimal()]
        except OSError as error:
            self.refusals.add(f"processes cannot be listed: {error.strerror}")
            return
        yield from map(int, islice(names, _MAX_PROCESSES))

    def _read_guarded(self, pid: int, start: int) -> Found | None:
        try:
            return self._read_process(pid, start)
        except PermissionError:
            self.refuse("SYS_PTRACE")
        except OSError:  # it has ended
            pass
        return None

    def _read_process(self, pid: int, start: int) -> Found | None:
        """The process; None where it is none of the kind. Raises OSError."""
        raise NotImplementedError

    def read_environment(
        self, process: Path, names: Collection[str], max_characters: int = 100
    ) -> dict[str, str]:
        """Of a folder in /proc; empty where it may not be read: others tell job and ranks then."""
        try:
            return read_environment(process, names, max_characters)
        except PermissionError:
            self.refuse("DAC_READ_SEARCH")
            return {}

    def refuse(self, capability: str) -> None:
        """Some processes are nobody's to read; what counts is what would help."""
        self.refusals |= {words for name, words in missing_words().items() if name == capability}

    def identify(self, pid: int, start: int, environment: Mapping[str, str]) -> JobProcess:
        """Who a process is; raises OSError."""
        folder = self.procfs / str(pid)
        group = read_bytes(folder / "cgroup", 64 << 10).decode(errors="replace")
        return JobProcess(
            pid=pid,
            inner_pid=_inner_pid(folder, pid),
            start_ticks=start,
            user=folder.stat().st_uid,
            job_id=_job_id(environment, group, self.procfs, pid),
            rank=_number(environment, _RANKS),
            local_rank=_number(environment, _LOCAL_RANKS),
            world_size=_number(environment, _WORLD_SIZES),
            pod_uid=(match[1].replace("_", "-") if (match := POD_UID.search(group)) else ""),
        )


def _job_id(environment: Mapping[str, str], group: str, procfs: Path, pid: int) -> str:
    """The id that ranks which attach would have; at last one by the process that started them."""
    slurm_job, _ = slurm_job_step(group)
    slurm_job = slurm_job or environment.get("SLURM_JOB_ID", "")
    array, task = (environment.get(f"SLURM_ARRAY_{name}_ID", "") for name in ("JOB", "TASK"))
    if slurm_job and array and task:
        slurm_job = f"{array}_{task}"
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    is_local = address in {"", "localhost", "::1"} or address.startswith("127.")
    meeting = "" if is_local else ".".join(filter(None, (address, port)))
    stated = environment.get("LOCKSTEP_JOB_ID") or slurm_job or (run if run != "none" else "")
    if stated or meeting:
        return fit_job_id(stated or meeting)
    parent = _parent(procfs, pid)
    return fit_job_id(f"local-{parent}-{start_ticks(procfs, parent) or 0}")


def _number(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        text = environment.get(name, "")
        if text.isascii() and text.isdecimal() and len(text) <= 7:  # noqa: PLR2004  # of ranks
            return int(text)
    return None


def read_bytes(path: Path, most: int) -> bytes:
    """The first bytes of a file of /proc; raises OSError."""
    with path.open("rb") as file:
        return file.read(most)


def _stat_fields(procfs: Path, pid: int) -> list[str]:
    """Fields of ``/proc/PID/stat`` behind the name, from the state on; empty once it has ended."""
    try:
        text = read_bytes(procfs / str(pid) / "stat", 4096).decode(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def start_ticks(procfs: Path, pid: int) -> int | None:
    """When a process started, in ticks since the boot; None once it has ended."""
    fields = _stat_fields(procfs, pid)
    is_whole = len(fields) > _START_FIELD
    return int(fields[_START_FIELD]) if is_whole and fields[0] not in "ZX" else None


def _parent(procfs: Path, pid: int) -> int:
    fields = _stat_fields(procfs, pid)
    return int(fields[1]) if len(fields) > 1 else 0


def _inner_pid(folder: Path, pid: int) -> int:
    for line in read_bytes(folder / "status", 16 << 10).decode(errors="replace").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid
