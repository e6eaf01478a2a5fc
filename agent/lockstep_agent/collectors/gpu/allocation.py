"""Which job each GPU is allocated to: pods, Slurm jobs and ranks, as one info series a GPU."""

import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.jobs.job_snapshot import JobSnapshot, user_of
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.sources.pod_resources import Allocation, list_allocations
from lockstep_agent.sources.process_job import hiding_words, read_process_job
from lockstep_agent.sources.sysfs import read_text
from lockstep_catalogue.gpu import GPU_OWNER_INFO, PORT_OWNER_INFO
from lockstep_records.text.printable import drop_unprintable

_log = logging.getLogger(__name__)
_NUMBERED = re.compile(r"(?:nvidia|gpu-?)(\d{1,3})(?:\D.*)?")
_MAX_LABEL_CHARACTERS = 200
_MAX_JOBS_IN_FILE = 16
_REFRESH_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuInUse:
    """One GPU as the driver last reported it.

    Attributes:
        address: PCI address as /sys writes it; empty where unknown.
        pids: processes that compute on it.
        instances: UUIDs of its MIG instances, where it is split.
    """

    index: int
    uuid: str
    address: str = ""
    pids: tuple[int, ...] = ()
    instances: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """Owner of a GPU by one source, in the order of the metric's labels; empty where unknown."""

    job_id: str = ""
    rank: str = ""
    slurm_job: str = ""
    slurm_step: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    claim: str = ""


_OWNER_FIELDS = tuple(field.name for field in fields(Owner))
_PORT_FIELDS = ("job_id", "rank", "slurm_job", "namespace", "pod")
Device = tuple[str, str]
"""UUID of a GPU, and of its MIG instance; the second is empty for a whole GPU."""


class GpuAllocation:
    """Joins rank pages, the kubelet's answer, processes and job files.

    A page, or a process by its environment, may name any GPU and any job. It counts where the
    driver lists a process of the job's user on that GPU, and where the job's folder is the user's.

    Args:
        gpus: the GPUs as the driver last reported them; calls no driver.
        kubelet: socket of the pod-resources service; it need not exist.
        job_files: folder of files named by GPU index, UUID or the UUID of a MIG instance that hold
            the ids of Slurm jobs, as a prolog writes them; None for none.
        adapters: names of the network adapters that are nearest to each GPU, by the GPU's address.
        allocations: asks the kubelet at a socket; raises OSError where it does not answer.
    """

    name = "gpu_allocation"
    tier = Tier.EVERY_TICK

    def __init__(
        self,
        gpus: Callable[[], Iterable[GpuInUse]],
        pages: PageStore,
        *,
        procfs: Path,
        kubelet: Path,
        job_files: Path | None = None,
        adapters: Mapping[str, tuple[str, ...]] | None = None,
        allocations: Callable[[Path], list[Allocation]] = list_allocations,
    ) -> None:
        self._gpus, self._pages, self._procfs = gpus, pages, procfs
        self._kubelet, self._job_files = kubelet, job_files
        self._adapters = adapters if adapters is not None else {}
        self._allocations = allocations
        self._seen: dict[str, GpuInUse] = {}
        self._silent_sources: set[str] = set()
        self._last_gpus: list[GpuInUse] = []
        self._next_refresh_seconds = 0.0
        self._latest: tuple[Reading, ...] = ()
        self._num_gpus: dict[str, int] = {}
        self._users: dict[str, dict[int, float]] = {}

    def collect(self) -> tuple[Reading, ...]:
        """One info series for each allocated GPU or MIG instance, and for each port next to one.

        Refreshed every ten seconds, and at once when the driver reports other GPUs or processes.
        """
        gpus = list(self._gpus())
        now = time.monotonic()
        if gpus != self._last_gpus or now >= self._next_refresh_seconds:
            self._last_gpus, self._next_refresh_seconds = gpus, now + _REFRESH_SECONDS
            self._note_users(gpus)
            self._latest = tuple(self._read(self._with_lost(gpus)))
        return self._latest

    def num_gpus_of(self, job_id: str) -> int | None:
        """GPUs of this node that are allocated to a job, idle ones too; None where unknown.

        Those that a rank or process of it uses, and the others of the same pod or Slurm job.
        """
        return self._num_gpus.get(job_id)

    def has_used(self, uuid: str, owner: int, since_seconds: float) -> bool:
        """Whether a process of a user was on a GPU at a wall clock or later, by the driver."""
        return self._users.get(uuid, {}).get(owner, -math.inf) >= since_seconds

    def _note_users(self, gpus: list[GpuInUse]) -> None:
        now = time.time()
        for gpu in gpus:
            users = [user_of(self._procfs, pid) for pid in gpu.pids]
            of_gpu = self._users.setdefault(gpu.uuid, {})
            of_gpu |= {user: now for user in users if user is not None}

    def _with_lost(self, gpus: list[GpuInUse]) -> list[GpuInUse]:
        """The GPUs, and those that the driver no longer lists: their jobs still hold them."""
        # By address: the driver counts anew without a GPU that fell off the bus.
        taken = {gpu.address or gpu.index for gpu in gpus}
        lost = {
            uuid: replace(gpu, pids=())
            for uuid, gpu in self._seen.items()
            if (gpu.address or gpu.index) not in taken
        }
        self._seen = lost | {gpu.uuid: gpu for gpu in gpus}
        return list(self._seen.values())

    def _read(self, gpus: list[GpuInUse]) -> Iterator[Reading]:
        owners: dict[Device, list[Owner]] = {}
        for source in (self._read_pages, self._read_pids, self._read_pods, self._read_files):
            for device, owner in source(gpus):
                owners.setdefault(device, []).append(owner)
        self._num_gpus = _count_by_job(owners)
        names = {gpu.uuid: (str(gpu.index), gpu.uuid, gpu.address) for gpu in gpus}
        of_ports: dict[str, list[Owner]] = {}
        for (uuid, instance), device_owners in sorted(owners.items()):
            values = tuple(_join_field(device_owners, name) for name in _OWNER_FIELDS)
            if any(values):
                gpu_names = names.get(uuid, ("", uuid, ""))
                labels = (*gpu_names, instance, *values)
                yield Reading(GPU_OWNER_INFO, tuple(map(drop_unprintable, labels)), 1)
                for adapter in self._adapters.get(gpu_names[-1], ()):
                    of_ports.setdefault(adapter, []).extend(device_owners)
        for adapter, port_owners in sorted(of_ports.items()):
            labels = (adapter, *(_join_field(port_owners, name) for name in _PORT_FIELDS))
            yield Reading(PORT_OWNER_INFO, tuple(map(drop_unprintable, labels)), 1)

    def _read_pages(self, gpus: list[GpuInUse]) -> Iterator[tuple[Device, Owner]]:
        def owned_by(job: JobSnapshot) -> Iterator[tuple[Device, Owner]]:
            for page in job.newest_pages():
                device = _device(gpus, page.identity["gpu_uuid"])
                if device[0] and self._is_user(gpus, device[0], job) and job.is_running(page):
                    yield device, Owner(job_id=job.job_id, rank=str(page.identity["rank"]))

        yield from self._pages.each(self.name, owned_by)

    def _is_user(self, gpus: list[GpuInUse], uuid: str, job: JobSnapshot) -> bool:
        """Whether a process of the job's user is on a GPU; of a lost GPU, whether one was."""
        users = self._users.get(uuid, {})
        if any(gpu.pids for gpu in gpus if gpu.uuid == uuid):
            return users.get(job.owner, -math.inf) >= max(users.values(), default=math.inf)
        return uuid not in {gpu.uuid for gpu in self._last_gpus} and job.owner in users

    def _read_pids(self, gpus: list[GpuInUse]) -> Iterator[tuple[Device, Owner]]:
        if hidden := hiding_words(self._procfs):
            self._log_silent("processes", hidden)
        for gpu in gpus:
            for pid in gpu.pids:
                process = read_process_job(self._procfs, pid)
                if process.is_refused:
                    self._log_silent(
                        "environment of processes",
                        "it may not be read, only the Slurm job in the cgroup; for ranks add"
                        " CAP_SYS_PTRACE",
                    )
                is_own = process.job_id and (
                    self._pages.owner_of(process.job_id) == user_of(self._procfs, pid)
                )
                owner = Owner(
                    job_id=process.job_id if is_own else "",
                    rank=process.rank if is_own else "",
                    slurm_job=process.slurm_job,
                    slurm_step=process.slurm_step,
                )
                yield (gpu.uuid, ""), owner

    def _read_pods(self, gpus: list[GpuInUse]) -> Iterator[tuple[Device, Owner]]:
        # A node without Kubernetes; the kubelet may also be started after the agent.
        if not self._kubelet.exists():
            return
        try:
            allocations = self._allocations(self._kubelet)
        except OSError as error:
            self._log_silent("pods", str(error))
            return
        self._silent_sources.discard("pods")
        for allocation in allocations:
            device = _device(gpus, allocation.device)
            if device[0]:  # the kubelet lists network cards and processors too
                owner = Owner(
                    namespace=allocation.namespace,
                    pod=allocation.pod,
                    container=allocation.container,
                    claim=allocation.claim,
                )
                yield device, owner

    def _read_files(self, gpus: list[GpuInUse]) -> Iterator[tuple[Device, Owner]]:
        if self._job_files is None:
            return
        for gpu in gpus:
            names = dict.fromkeys((str(gpu.index), gpu.uuid), "")
            names |= {instance: instance for instance in gpu.instances}
            for name, instance in names.items():
                text = read_text(self._job_files / name) if name else None
                for job in (text or "").split()[:_MAX_JOBS_IN_FILE]:
                    yield (gpu.uuid, instance), Owner(slurm_job=job)

    def _log_silent(self, source: str, reason: str) -> None:
        if source not in self._silent_sources:
            _log.warning("collector=owners source=%r state=silent reason=%r", source, reason)
        self._silent_sources.add(source)


def _count_by_job(owners: Mapping[Device, list[Owner]]) -> dict[str, int]:
    """Number of allocated GPUs by job id; a GPU that another job uses is not counted."""
    allocations = {
        device: {(o.namespace, o.pod, o.slurm_job) for o in entries if o.pod or o.slurm_job}
        for device, entries in owners.items()
    }
    users = {device: {o.job_id for o in entries} - {""} for device, entries in owners.items()}
    counts = {}
    for job_id in set().union(*users.values()):
        used = [device for device in owners if job_id in users[device]]
        own = set().union(*(allocations[device] for device in used))
        idle = [device for device in owners if not users[device] and own & allocations[device]]
        counts[job_id] = len({uuid for uuid, _ in (*used, *idle)})
    return counts


def _device(gpus: list[GpuInUse], device_id: str) -> Device:
    """The GPU that a device id means, empty where it means none.

    Ids are UUIDs of GPUs or of their MIG instances, with ``::N`` behind where the GPU is shared in
    time, or numbers as GKE (``nvidia0/gi1``) and the DRA driver (``gpu-0``) write them.
    """
    uuid = device_id.partition("::")[0]
    for gpu in gpus:
        if uuid in gpu.instances:
            return gpu.uuid, uuid
    if uuid.startswith("GPU-"):
        return uuid, ""
    numbered = _NUMBERED.fullmatch(device_id)
    uuids = [gpu.uuid for gpu in gpus if numbered and gpu.index == int(numbered[1])]
    return (uuids[0], "") if uuids else ("", "")


def _join_field(owners: Iterable[Owner], name: str) -> str:
    """The distinct values of a field of several owners as one list in one label.

    A series for each owner would break joins: they need one series a GPU.
    """
    values: set[str] = {getattr(owner, name) for owner in owners} - {""}
    # Shorter first, so that ranks sort as numbers.
    distinct = sorted(values, key=lambda value: (len(value), value))
    return ",".join(distinct)[:_MAX_LABEL_CHARACTERS]
