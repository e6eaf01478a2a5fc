"""Whose each GPU is: pods, Slurm jobs and ranks, joined to one info series a GPU."""

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.pod_resources import Allocation, list_allocations
from lockstep_agent.sources.process_job import read_process_job
from lockstep_agent.sources.processes import is_running
from lockstep_agent.sources.sysfs import read_text
from lockstep_catalogue.gpu_owner import GPU_OWNER_INFO
from lockstep_records.jobs import list_attempts, list_jobs, list_pages
from lockstep_records.page.reader import PageError, read_page

_log = logging.getLogger(__name__)
_NUMBERED = re.compile(r"(?:nvidia|gpu-?)(\d{1,3})(?:\D.*)?")
_MOST_CHARACTERS = 200
_REFRESH_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuInUse:
    """What the driver tells of one GPU at one moment.

    Attributes:
        pids: of the processes that compute on it.
        instances: UUIDs of its parts, where it is split.
    """

    index: int
    uuid: str
    pids: tuple[int, ...] = ()
    instances: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """What one source knows; empty where it does not. In the order of the metric's labels."""

    job_id: str = ""
    rank: str = ""
    slurm_job: str = ""
    slurm_step: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    claim: str = ""


Device = tuple[str, str]
"""UUID of a GPU, and of its part where it is split or empty."""


class GpuAllocation:
    """Joins what rank pages, the kubelet, processes and job files tell.

    Args:
        gpus: what the driver told last; never a call to it.
        kubelet: socket of the pod-resources service; it need not exist.
        job_files: folder of files named by GPU index or UUID, with the ids of Slurm jobs inside,
            as a prolog writes them.
    """

    name = "owners"
    tier = Tier.EVERY_TICK

    def __init__(
        self,
        gpus: Callable[[], Iterable[GpuInUse]],
        *,
        root: Path,
        procfs: Path,
        kubelet: Path,
        job_files: Path | None = None,
        ask: Callable[[Path], list[Allocation]] = list_allocations,
    ) -> None:
        self._gpus, self._ask = gpus, ask
        self._root, self._procfs = root, procfs
        self._kubelet, self._job_files = kubelet, job_files
        self._said: set[str] = set()
        self._last_gpus: list[GpuInUse] = []
        self._next_seconds = 0.0
        self._latest: tuple[Reading, ...] = ()

    def collect(self) -> tuple[Reading, ...]:
        """One info series for each GPU, or part of one, that is somebody's; asked seldom."""
        gpus = list(self._gpus())
        now = time.monotonic()
        if gpus != self._last_gpus or now >= self._next_seconds:
            self._last_gpus, self._next_seconds = gpus, now + _REFRESH_SECONDS
            self._latest = tuple(self._read(gpus))
        return self._latest

    def _read(self, gpus: list[GpuInUse]) -> Iterator[Reading]:
        owners: dict[Device, list[Owner]] = {}
        for source in (self._of_pages, self._of_processes, self._of_pods, self._of_job_files):
            for device, owner in source(gpus):
                owners.setdefault(device, []).append(owner)
        index = {gpu.uuid: str(gpu.index) for gpu in gpus}
        for (uuid, part), found in sorted(owners.items()):
            told = tuple(_joined(getattr(one, field.name) for one in found) for field in _FIELDS)
            if any(told):
                labels = (index.get(uuid, ""), uuid, part, *told)
                yield Reading(GPU_OWNER_INFO, tuple(map(_printable, labels)), 1)

    def _of_pages(self, gpus: list[GpuInUse]) -> Iterator[tuple[Device, Owner]]:
        for job in list_jobs(self._root):
            try:
                pages = [path for one in list_attempts(job)[-1:] for path in list_pages(one)]
            except OSError:
                continue  # the folder is being removed
            for path in pages:
                try:
                    who = read_page(path).identity
                except PageError:
                    continue
                runs = is_running(self._procfs, who["pid"], who["start_monotonic_ns"])
                if runs and who["gpu_uuid"]:
                    owner = Owner(job_id=job.name, rank=str(who["rank"]))
                    yield _device(gpus, who["gpu_uuid"]), owner

    def _of_processes(self, gpus: list[GpuInUse]) -> Iterator[tuple[Device, Owner]]:
        for gpu in gpus:
            for pid in gpu.pids:
                try:
                    process_job = read_process_job(self._procfs, pid)
                except PermissionError:
                    self._say("environment of processes", "it may not be read; run as root")
                    return
                owner = Owner(
                    job_id=process_job.job_id,
                    rank=process_job.rank,
                    slurm_job=process_job.slurm_job,
                    slurm_step=process_job.slurm_step,
                )
                yield (gpu.uuid, ""), owner

    def _of_pods(self, gpus: list[GpuInUse]) -> Iterator[tuple[Device, Owner]]:
        if not self._kubelet.exists():
            return
        try:
            allocations = self._ask(self._kubelet)
        except OSError as error:
            self._say("pods", str(error))
            return
        self._said.discard("pods")
        for one in allocations:
            device = _device(gpus, one.device)
            if device[0]:
                yield (
                    device,
                    Owner(
                        namespace=one.namespace,
                        pod=one.pod,
                        container=one.container,
                        claim=one.claim,
                    ),
                )

    def _of_job_files(self, gpus: list[GpuInUse]) -> Iterator[tuple[Device, Owner]]:
        for gpu in gpus:
            for name in (str(gpu.index), gpu.uuid):
                told = read_text(self._job_files / name) if self._job_files and name else None
                for job in (told or "").split()[:16]:
                    yield (gpu.uuid, ""), Owner(slurm_job=job)

    def _say(self, what: str, why: str) -> None:
        if what not in self._said:
            _log.warning("collector=owners source=%r state=silent reason=%r", what, why)
        self._said.add(what)


_FIELDS = fields(Owner)


def _device(gpus: list[GpuInUse], named: str) -> Device:
    """The GPU that a device id means, empty where it means none.

    Ids are UUIDs of GPUs or of their parts, with ``::N`` behind where the GPU is shared in time,
    or numbers as GKE (``nvidia0/gi1``) and the driver of claims (``gpu-0``) write them.
    """
    uuid = named.partition("::")[0]
    for gpu in gpus:
        if uuid in gpu.instances:
            return gpu.uuid, uuid
    if uuid.startswith("GPU-"):
        return uuid, ""
    numbered = _NUMBERED.fullmatch(named)
    found = [gpu.uuid for gpu in gpus if numbered and gpu.index == int(numbered[1])]
    return (found[0], "") if found else ("", "")


def _joined(values: Iterable[str]) -> str:
    """What all sources say; several who share a GPU are told as a list, so that joins hold."""
    known = sorted({value for value in values if value}, key=lambda value: (len(value), value))
    return ",".join(known)[:_MOST_CHARACTERS]


def _printable(text: str) -> str:
    return "".join(character for character in text if character.isprintable())
